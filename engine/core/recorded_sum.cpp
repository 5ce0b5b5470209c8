#include "engine/core/recorded_sum.h"

#include <utility>

namespace stagecraft {

RecordedSum::RecordedSum(std::unique_ptr<ReplicaSum> sum, Recorder& recorder, const Action& action,
                         std::int64_t step)
    : sum_(std::move(sum)), recorder_(recorder), action_(action), step_(step) {
  sum_->time_spans();
}

template <class Call>
void RecordedSum::watch(const Call& call) {
  if (!recorder_.sees_transfers()) return call();
  const Seconds since = since_ ? *since_ : recorder_.mark().time;
  call();
  const auto [begun, done] = sum_->progress();
  since_.reset();
  if (begun > done) {
    since_ = since;
  } else if (done > recorded_) {
    recorder_.record_sum(action_, step_, since, recorder_.mark().time, done - recorded_);
    recorded_ = done;
  }
}

void RecordedSum::add(const at::Tensor& tensor) {
  watch([&] { sum_->add(tensor); });
}

void RecordedSum::add(const std::vector<at::Tensor>& own) {
  watch([&] { sum_->add(own); });
}

void RecordedSum::flush() {
  watch([&] { sum_->flush(); });
}

void RecordedSum::poll() {
  watch([&] { sum_->poll(); });
}

void RecordedSum::finish() {
  watch([&] { sum_->finish(); });
  if (ReplicaSum::Spans spans = sum_->spans()) recorder_.record_spans(action_, step_, std::move(spans));
}

}  // namespace stagecraft
