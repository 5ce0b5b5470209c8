#include "schedules/synthesis/lower_bound.h"

#include "schedules/synthesis/memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace stagecraft::synthesis {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// A computation as its rank sees it.
struct Job {
  double head = 0;
  double seconds = 0;
  double tail = 0;
};

/// The least makespan of one machine that may interrupt its jobs.
double preemptive(std::vector<Job> jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
  std::priority_queue<std::pair<double, double>> waiting;  // tail, seconds left
  double now = 0;
  double makespan = 0;
  std::size_t next = 0;
  while (next < jobs.size() || !waiting.empty()) {
    if (waiting.empty()) now = std::max(now, jobs[next].head);
    for (; next < jobs.size() && jobs[next].head <= now; ++next)
      waiting.emplace(jobs[next].tail, jobs[next].seconds);
    const auto [tail, left] = waiting.top();
    waiting.pop();
    const double until = next < jobs.size() ? std::min(jobs[next].head, now + left) : now + left;
    if (until < now + left) {
      waiting.emplace(tail, left - (until - now));
    } else {
      makespan = std::max(makespan, until + tail);
    }
    now = until;
  }
  return makespan;
}

class Bounds {
 public:
  explicit Bounds(const Problem& problem)
      : problem_(problem), micro_batches_(static_cast<std::size_t>(problem.micro_batches())) {
    const std::size_t all = static_cast<std::size_t>(problem.stages()) * micro_batches_;
    forward_.resize(all);
    again_.resize(all);
    input_.resize(all);
    weight_.resize(all);
    flush_.resize(static_cast<std::size_t>(problem.ranks()), 0);
    for (const Seat& seat : problem.seats()) flush_[seat.rank.index()] += seat.step;
    if (problem.clip())
      std::fill(flush_.begin(), flush_.end(), *std::max_element(flush_.begin(), flush_.end()));
    find_heads();
    find_tails();
  }

  LowerBound best() const {
    LowerBound bound;
    bound.rank = Rank{0};
    const auto offer = [&](double seconds, LowerBound::Kind kind, Rank rank) {
      if (seconds > bound.seconds) bound = {seconds, kind, rank};
    };
    for (int r = 0; r < problem_.ranks(); ++r) {
      offer(preemptive(jobs_of(Rank{r})), LowerBound::Kind::work, Rank{r});
      if (problem_.capacity()) offer(memory_of(Rank{r}), LowerBound::Kind::memory, Rank{r});
    }
    return bound;
  }

 private:
  [[nodiscard]] std::size_t at(int stage, std::size_t mb) const {
    return static_cast<std::size_t>(stage) * micro_batches_ + mb;
  }
  [[nodiscard]] std::size_t width(int stage) const {
    return static_cast<std::size_t>(problem_.placement().width(StageId{stage}));
  }

  void find_heads() {
    const int last = problem_.stages() - 1;
    for (std::size_t mb = 0; mb < micro_batches_; ++mb) {
      const MicroBatch micro_batch{mb};
      for (int s = 0; s <= last; ++s) {
        Job& job = forward_[at(s, mb)];
        job.seconds = problem_.seat(StageId{s}, micro_batch).forward;
        if (s > 0) {
          job.head = end(forward_[at(s - 1, mb)]) + problem_.activation_seconds(StageId{s}, micro_batch);
        }
        if (mb >= width(s)) job.head = std::max(job.head, end(forward_[at(s, mb - width(s))]));
      }
      for (int s = last; s >= 0; --s) {
        Job& input = input_[at(s, mb)];
        input.seconds = problem_.seat(StageId{s}, micro_batch).input_part;
        Job& again = again_[at(s, mb)];
        again.seconds = problem_.recompute_seconds(StageId{s}, micro_batch);
        again.head = end(forward_[at(s, mb)]);
        input.head = end(again);
        if (s < last) {
          input.head = std::max(
              input.head, end(input_[at(s + 1, mb)]) + problem_.gradient_seconds(StageId{s}, micro_batch));
        }
        Job& weight = weight_[at(s, mb)];
        weight.seconds = problem_.seat(StageId{s}, micro_batch).weight_part;
        weight.head = end(input);
        if (mb >= width(s)) weight.head = std::max(weight.head, end(weight_[at(s, mb - width(s))]));
      }
    }
  }

  void find_tails() {
    const int last = problem_.stages() - 1;
    for (std::size_t mb = micro_batches_; mb-- > 0;) {
      const MicroBatch micro_batch{mb};
      for (int s = 0; s <= last; ++s) {
        Job& weight = weight_[at(s, mb)];
        weight.tail = flush_[problem_.seat(StageId{s}, micro_batch).rank.index()];
        if (mb + width(s) < micro_batches_)
          weight.tail = std::max(weight.tail, whole(weight_[at(s, mb + width(s))]));
        Job& input = input_[at(s, mb)];
        input.tail = whole(weight);
        if (s > 0) {
          input.tail = std::max(input.tail, problem_.gradient_seconds(StageId{s - 1}, micro_batch) +
                                                whole(input_[at(s - 1, mb)]));
        }
      }
      for (int s = last; s >= 0; --s) {
        Job& again = again_[at(s, mb)];
        again.tail = whole(input_[at(s, mb)]);
        Job& job = forward_[at(s, mb)];
        job.tail = whole(again);
        if (s < last) {
          job.tail = std::max(job.tail, problem_.activation_seconds(StageId{s + 1}, micro_batch) +
                                            whole(forward_[at(s + 1, mb)]));
        }
        if (mb + width(s) < micro_batches_)
          job.tail = std::max(job.tail, whole(forward_[at(s, mb + width(s))]));
      }
    }
  }

  [[nodiscard]] static double end(const Job& job) { return job.head + job.seconds; }
  [[nodiscard]] static double whole(const Job& job) { return job.seconds + job.tail; }

  [[nodiscard]] std::vector<Job> jobs_of(Rank rank) const {
    std::vector<Job> jobs;
    for (const std::size_t i : problem_.seats_of(rank)) {
      const Seat& seat = problem_.seats()[i];
      const auto first = static_cast<std::size_t>(seat.replica);
      for (std::size_t mb = first; mb < micro_batches_; mb += width(seat.stage.value)) {
        const std::size_t here = at(seat.stage.value, mb);
        jobs.insert(jobs.end(), {forward_[here], input_[here], weight_[here]});
        if (again_[here].seconds > 0) jobs.push_back(again_[here]);
      }
    }
    return jobs;
  }

  [[nodiscard]] double memory_of(Rank rank) const {
    const auto room = static_cast<double>((*problem_.capacity() - standing_memory(problem_, rank)).value);
    if (room <= 0) return 0;  // nothing fits, and nothing is to be bounded
    double area = 0;          // up to the last input part
    double area_to_end = 0;   // up to the last weight part
    double stretch = 0;
    double head = kInfinite;
    double tail = kInfinite;
    double tail_to_end = kInfinite;
    for (const std::size_t i : problem_.seats_of(rank)) {
      const Seat& seat = problem_.seats()[i];
      if (seat.count == 0) continue;
      const StageCosts& c = problem_.costs(seat.stage);
      const Bytes grows =
          c.kept_for_input + (c.output_kept && seat.stage < problem_.last_stage() ? c.output : Bytes{});
      const double before = c.forward_peak >= grows ? 0 : seat.forward;  // the forward itself does not count
      double bytes = kInfinite;  // of the micro-batch that keeps least
      double sum = 0;
      double turn = kInfinite;
      for (std::size_t mb = static_cast<std::size_t>(seat.replica); mb < micro_batches_;
           mb += width(seat.stage.value)) {
        const std::size_t here = at(seat.stage.value, mb);
        head = std::min(head, forward_[here].head + before);
        tail = std::min(tail, input_[here].tail);
        tail_to_end = std::min(tail_to_end, weight_[here].tail);
        turn = std::min(turn, round_trip(seat.stage.value, MicroBatch{mb}) - before);
        const auto kept = static_cast<double>(kept_a_micro_batch(problem_, seat, MicroBatch{mb}).value);
        bytes = std::min(bytes, kept);
        sum += kept;
      }
      area += sum * turn;
      area_to_end += sum * turn + static_cast<double>(kept_for_weight_part(problem_, seat).value) *
                                      seat.weight_part * seat.count;
      if (problem_.seats_of(rank).size() == 1 && bytes > 0) {
        const double at_once = std::max(1.0, std::floor(room / bytes));
        stretch = std::ceil(seat.count / at_once) * turn;
      }
    }
    if (head == kInfinite) return 0;
    return head + std::max(std::max(stretch, area / room) + tail, area_to_end / room + tail_to_end);
  }

  /// From the start of a forward to the end of its input part, if nothing is waited for.
  [[nodiscard]] double round_trip(int stage, MicroBatch mb) const {
    double seconds = 0;
    for (int s = problem_.stages() - 1; s >= stage; --s) {
      const Seat& seat = problem_.seat(StageId{s}, mb);
      if (s + 1 < problem_.stages()) {
        seconds +=
            problem_.activation_seconds(StageId{s + 1}, mb) + problem_.gradient_seconds(StageId{s}, mb);
      }
      seconds = std::max(seconds, problem_.recompute_seconds(StageId{s}, mb));
      seconds += seat.forward + seat.input_part;
    }
    return seconds;
  }

  const Problem& problem_;
  std::size_t micro_batches_;
  std::vector<Job> forward_, again_, input_, weight_;  // per stage and micro-batch; again_: recomputes
  std::vector<double> flush_;                          // per rank
};

}  // namespace

LowerBound lower_bound(const Problem& problem) { return Bounds(problem).best(); }

}  // namespace stagecraft::synthesis
