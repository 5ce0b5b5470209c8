#include "engine/records/view/run_history.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {

void RunHistory::Range::add(double value) {
  if (!std::isfinite(value)) return;
  sum += value;
  low = std::min(low, value);
  high = std::max(high, value);
  ++count;
}

void RunHistory::Range::add(const Range& other) {
  sum += other.sum;
  low = std::min(low, other.low);
  high = std::max(high, other.high);
  count += other.count;
}

std::optional<double> RunHistory::Range::mean() const {
  return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

void RunHistory::add(const MetricsRecord& record) {
  ++lines_;
  if (record.validation) {
    validations_.push_back({record.step, record.loss, record.accuracy, record.terms});
    if (validations_.size() > kMostPoints) {  // every second one, the newest among them
      std::size_t kept = 0;
      for (std::size_t i = validations_.size() % 2 == 0 ? 1 : 0; i < validations_.size(); i += 2)
        validations_[kept++] = validations_[i];
      validations_.resize(kept);
    }
    return;
  }
  const auto stretch = [this](std::int64_t step) { return (step - 1) / width_; };
  if (points_.empty() || stretch(points_.back().step) != stretch(record.step)) {
    if (points_.size() == kMostPoints) halve();
    if (points_.empty() || stretch(points_.back().step) != stretch(record.step)) points_.emplace_back();
  }
  Point& point = points_.back();
  point.step = record.step;
  point.loss.add(record.loss);
  for (const auto& [name, term] : record.terms) point.terms[name].add(term);
  if (record.gradient_norm) point.norm.add(*record.gradient_norm);
  point.ms.add(record.ms);
  point.samples_per_second.add(record.samples_per_second);
  point.learning_rate = record.learning_rate;
  point.loss_scale = record.loss_scale;
  point.skipped += record.skipped ? 1 : 0;
  point.not_finite += std::isfinite(record.loss) ? 0 : 1;
  skipped_ += record.skipped ? 1 : 0;
  if (steps_ > 0) {
    if (recent_.size() < kRecent) {
      recent_.push_back(record.ms);
    } else {
      recent_[next_recent_++ % kRecent] = record.ms;
    }
  }
  steps_ = record.step;
  newest_ = record;
}

void RunHistory::halve() {
  width_ *= 2;
  std::vector<Point> halves;
  halves.reserve(kMostPoints);
  for (const Point& point : points_) {
    if (halves.empty() || (halves.back().step - 1) / width_ != (point.step - 1) / width_) {
      halves.push_back(point);
      continue;
    }
    Point& both = halves.back();
    both.step = point.step;
    both.loss.add(point.loss);
    both.norm.add(point.norm);
    for (const auto& [name, term] : point.terms) both.terms[name].add(term);
    both.ms.add(point.ms);
    both.samples_per_second.add(point.samples_per_second);
    both.learning_rate = point.learning_rate;
    both.loss_scale = point.loss_scale;
    both.skipped += point.skipped;
    both.not_finite += point.not_finite;
  }
  points_ = std::move(halves);
}

}  // namespace stagecraft
