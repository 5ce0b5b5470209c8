#pragma once

// How much of a request's search is left, in counted work or in time.

#include "partitioner/search/cut_search.h"
#include "partitioner/search/planner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace stagecraft::planning {

/// Layouts with replicas come last, so that what may have them is never behind what may not. They get what is left, and
/// at least one of so many parts.
inline constexpr int kForReplicas = 3;

/// Begins to count where it is made.
class WorkBudget {
 public:
  /// Keeps a reference to `asked`.
  explicit WorkBudget(const SearchBudget& asked)
      : asked_(asked), total_(asked.cut_work), left_(total_), phase_(total_) {}

  [[nodiscard]] Seconds spent() const {
    return Seconds{std::chrono::duration<double>(Clock::now() - begin_).count()};
  }
  /// What one of so many layouts gets, and at least one of `parts` of what is left; `tell` is called now and then.
  [[nodiscard]] CutSearchBudget share(std::size_t layouts, int parts,
                                      const std::function<void()>& tell) const {
    const auto waiting = static_cast<std::int64_t>(std::max<std::size_t>(layouts, 1));
    CutSearchBudget budget;
    std::optional<Seconds> until;
    if (asked_.time_limit) {
      until = spent() + left() / static_cast<double>(std::min<std::int64_t>(waiting, parts));
    } else {
      budget.work = std::max(left_ / waiting, left_ / parts);
    }
    budget.go_on = [this, tell, until] {
      tell();
      return !until || spent() < *until;
    };
    return budget;
  }
  /// What comes first gets all of it, so that it finds what it finds alone. Only of a time limit one of so many parts is
  /// kept for what follows.
  void first_phase(int parts) {
    if (asked_.time_limit) held_time_ = left() / parts;
    phase_ = left_;
  }
  /// A share of what is left is for searches of their own: give_whole(), and of a time limit release() gives the
  /// share back.
  void keep_back(double share) {
    const auto work = static_cast<std::int64_t>(static_cast<double>(left_) * share);
    total_ -= work;
    left_ -= work;
    if (asked_.time_limit) kept_time_ = left() * share;
    held_time_ += kept_time_;
  }
  void release() { held_time_ -= std::exchange(kept_time_, Seconds{}); }
  /// What a search of its own gets: the work of a request, or half of the time that is left.
  void give_whole(SearchBudget& budget) const {
    budget.cut_work = asked_.cut_work;
    if (asked_.time_limit) budget.time_limit = left() / 2;
  }
  /// What follows gets the rest, and at least one of so many parts of the whole.
  void next_phase(int parts) {
    const std::int64_t more = std::max<std::int64_t>(0, asked_.cut_work / parts - left_);
    left_ += more;
    total_ += more;
    held_time_ = Seconds{};
    phase_ = left_;
    phase_begin_ = spent();
  }
  /// What `search` does does not count, but it gets half of what is left at most.
  void aside(const std::function<void()>& search) {
    const std::int64_t left = left_;
    search();
    total_ += left - left_;
    left_ = left;
  }
  void take(std::int64_t work) { left_ = std::max<std::int64_t>(0, left_ - work); }
  [[nodiscard]] std::int64_t taken() const { return total_ - left_; }
  /// Of generating, lowering and proving a program.
  void take_program(int micro_batches, int stages) {
    constexpr std::int64_t kActions = 10, kNanosecondsPerAction = 100;  // of a stage and micro-batch
    take(kActions * kNanosecondsPerAction * micro_batches * stages);
  }
  /// Whether so many nanoseconds of work, about, are left.
  [[nodiscard]] bool allows(double nanoseconds) const {
    if (asked_.time_limit) return left().value > nanoseconds * 1e-9;
    return static_cast<double>(left_) > nanoseconds;
  }
  /// Of a time limit; nothing where it is over.
  [[nodiscard]] Seconds left() const {
    return std::max(Seconds{}, *asked_.time_limit - held_time_ - spent());
  }
  /// What generating, lowering, proving and simulating a program takes, about.
  [[nodiscard]] static Seconds program_time(int micro_batches, int stages) {
    return Seconds{5e-6 * micro_batches * stages};
  }
  /// Of the phase.
  [[nodiscard]] bool half_spent() const {
    return asked_.time_limit ? spent() - phase_begin_ >= (*asked_.time_limit - held_time_ - phase_begin_) / 2
                             : left_ < phase_ / 2;
  }
  [[nodiscard]] bool over() const { return asked_.time_limit ? left() == Seconds{} : left_ == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  const SearchBudget& asked_;
  std::int64_t total_, left_, phase_;  ///< of all phases; of the present one, at its beginning
  Seconds held_time_{}, kept_time_{}, phase_begin_{};
  Clock::time_point begin_ = Clock::now();
};

}  // namespace stagecraft::planning
