#include "partitioner/remedies.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

namespace stagecraft {
namespace {

// Only whether something fits is asked, and the balanced cuts of all layouts are looked at in any case.
constexpr std::int64_t kCutWork = 20'000'000;
constexpr std::int64_t kOrders = 20'000;
/// A cluster that could hold each layer on a device of its own, or so many devices, whichever is more.
constexpr int kMostDevices = 4096;
/// Memory is found to one part in so many.
constexpr std::int64_t kPrecision = 1024;

class Remedies {
 public:
  Remedies(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
      : profile_(profile), cluster_(cluster), request_(request) {
    request_.search.work = kOrders;
    request_.search.cut_work = kCutWork;
    request_.search.time_limit.reset();
  }

  std::vector<Remedy> all() {
    recompute();
    smaller_batches();
    more_devices();
    more_memory();
    return std::move(found_);
  }

 private:
  /// What the plan needs that fits best; none where nothing fits.
  [[nodiscard]] std::optional<Bytes> fits(const Cluster& cluster, const PlanRequest& request) const {
    try {
      const PlanResult result = make_plan(profile_, cluster, request);
      return most(result.best.plan);
    } catch (const RefusedError&) {
      return std::nullopt;
    } catch (const InputError&) {  // not for this schedule, not with this option
      return std::nullopt;
    }
  }
  [[nodiscard]] static Bytes most(const Plan& plan) {
    return *std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end());
  }
  bool take(Remedy::Kind kind, const Cluster& cluster, const PlanRequest& request) {
    const std::optional<Bytes> needs = fits(cluster, request);
    if (needs) found_.push_back({kind, request, cluster, *needs});
    return needs.has_value();
  }

  void recompute() {
    if (!request_.recompute || request_.recompute == Recompute::all) return;
    PlanRequest request = request_;
    request.recompute = std::nullopt;
    take(Remedy::Kind::recompute, cluster_, request);
  }

  void smaller_batches() {
    std::vector<std::int64_t> sizes;
    for (const Measurement& measurement : profile_.measurements) {
      if (measurement.micro_batch < request_.micro_batch_size) sizes.push_back(measurement.micro_batch);
    }
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    const std::int64_t samples = request_.micro_batch_size * request_.micro_batches;
    for (const std::int64_t size : sizes) {
      const std::int64_t count = (samples + size - 1) / size;
      if (count > kMostMicroBatches) return;
      PlanRequest request = request_;
      request.micro_batch_size = size;
      request.micro_batches = static_cast<int>(count);
      if (take(Remedy::Kind::smaller_batches, cluster_, request)) return;
    }
  }

  /// What fits so many devices fits more of them: doubled until something fits, then halved between.
  void more_devices() {
    Cluster cluster = cluster_;
    cluster.speed.clear();  // whatever theirs are: memory does not depend on it
    std::size_t level = 0;
    for (std::size_t l = 0; l < cluster.levels.size(); ++l) {
      if (cluster.levels[l].count > 1) level = l;
    }
    int& count = cluster.levels[level].count;
    const int inside = cluster_.devices() / count;
    const auto layers = static_cast<int>(profile_.at(request_.micro_batch_size).layers.size());
    const int most = (std::max(std::min(kMostDevices, 4 * layers), layers) + inside - 1) / inside;
    int refused = count;
    std::optional<Bytes> needs;
    while (!needs && refused < most) {
      count = std::min(most, 2 * refused);
      needs = fits(cluster, request_);
      if (!needs) refused = count;
    }
    if (!needs) return;
    int least = count;
    while (least - refused > 1) {
      count = refused + (least - refused) / 2;
      const std::optional<Bytes> with = fits(cluster, request_);
      if (with) {
        needs = with;
        least = count;
      } else {
        refused = count;
      }
    }
    count = least;
    found_.push_back({Remedy::Kind::more_devices, request_, cluster, *needs});
  }

  void more_memory() {
    Cluster cluster = cluster_;
    cluster.memory.reset();
    std::optional<Bytes> needs = fits(cluster, request_);
    if (!needs) return;
    Bytes refused = *cluster_.usable_memory();
    while (needs->value - refused.value > std::max<std::int64_t>(1, needs->value / kPrecision)) {
      const Bytes cap{refused.value + (needs->value - refused.value) / 2};
      cluster.memory = cap + cluster.memory_reserve;
      const std::optional<Bytes> with = fits(cluster, request_);
      if (with) {
        needs = with;
      } else {
        refused = cap;
      }
    }
    cluster.memory = *needs + cluster.memory_reserve;
    found_.push_back({Remedy::Kind::more_memory, request_, cluster, *needs});
  }

  const Profile& profile_;
  const Cluster& cluster_;
  PlanRequest request_;
  std::vector<Remedy> found_;
};

}  // namespace

std::vector<Remedy> remedies(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  // A search for an order takes too long for as many questions.
  if (!cluster.memory || find_schedule(request.schedule.name).searched) return {};
  return Remedies(profile, cluster, request).all();
}

}  // namespace stagecraft
