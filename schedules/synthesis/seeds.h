#pragma once

#include "schedules/list_scheduling/list_scheduler.h"
#include "schedules/synthesis/local_search.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::synthesis {

struct Seed {
  std::string name;
  Found found;

  [[nodiscard]] double seconds() const { return found.price.seconds; }
};
[[nodiscard]] inline bool cheaper(const Seed& a, const Seed& b) { return a.seconds() < b.seconds(); }

/// Collects orders that finish and fit, cheapest first.
class Seeds {
 public:
  /// Keeps references to both.
  Seeds(const Problem& problem, Pricing& pricing);

  /// A schedule's orders, as they are and with every backward split.
  void add_schedule(const std::string& name, const Orders& orders);
  /// List schedules with the orders' own order as priorities: "NAME squeezed".
  void add_squeezed(const std::string& name, const Orders& orders);
  /// Every micro-batch when the one before is over: slow, but hardly an order needs less memory.
  void add_one_at_a_time();
  /// List schedules by general rules: "list schedule".
  void add_lists();

  /// Under a cap, the orders `keeping` about as many micro-batches of its stages as a rank has room for: "blocks".
  void add_keeping(const std::function<std::vector<Orders>(int micro_batches)>& keeping);
  /// List schedules in which a stage may hold so many micro-batches and no more: a rank's first stages some,
  /// its later ones others. While `go_on`.
  void add_shared(const std::function<bool()>& go_on);
  /// So many list schedules by patterns (policy_search.h), from the cheapest seeds and from none: the best few,
  /// best first.
  [[nodiscard]] std::vector<Seed> add_patterns(std::int64_t schedules, std::uint64_t draws,
                                               const std::function<bool()>& go_on);
  /// One that was searched for from another.
  void add_found(const Seed& seed) { seeds_.push_back(seed); }

  /// From the cheapest seeds: list schedules by the latest starts in them, as long as that helps.
  void follow(std::size_t most, const std::function<bool()>& go_on);

  /// The cheapest ones, no two of one price.
  [[nodiscard]] std::vector<Seed> best(std::size_t most) const;

 private:
  bool add(const std::string& name, const Orders& orders);
  /// The same of orders that fit with the usual slots.
  bool add_fitting(const std::string& name, const Orders& orders);
  [[nodiscard]] KeepLimit largest_limit();
  void add_within(const std::string& name, const Policy& policy);
  /// A list schedule, given up where it does not fit.
  [[nodiscard]] std::optional<Orders> schedule_that_fits(const KeepLimit& limit, const Policy& policy) const;
  [[nodiscard]] KeepLimit limit_of(double share) const;

  const Problem& problem_;
  Pricing& pricing_;
  Workload workload_;
  std::vector<Seed> seeds_;
};

/// The computations of a program, in order, recomputes apart.
[[nodiscard]] Orders orders_of(const ScheduleProgram& program);

}  // namespace stagecraft::synthesis
