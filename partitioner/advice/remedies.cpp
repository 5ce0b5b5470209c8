#include "partitioner/advice/remedies.h"

#include "schedules/generators/registry.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

namespace stagecraft {
namespace {

// Only whether something fits is asked, and the balanced cuts of all layouts are looked at in any case. Several stages
// per rank have no such cuts: there it is searched for.
constexpr std::int64_t kCutWork = 20'000'000, kLoopWork = 400'000'000;
/// A cluster that could hold each layer on a device of its own, or so many devices, whichever is more.
constexpr int kMostSuggestedDevices = 4096;
/// Memory is found to one part in so many.
constexpr std::int64_t kPrecision = 1024;

class Remedies {
 public:
  Remedies(const Profile& profile, const Cluster& cluster) : profile_(profile), cluster_(cluster) {}

  std::vector<Remedy> all(std::vector<PlanRequest> requests) {
    std::vector<const PlanRequest*> changed;
    for (PlanRequest& request : requests) {
      const Schedule& schedule = find_schedule(request.schedule.name);
      const bool searched = schedule.searched;
      if (schedule.orders_by_time && !searched) {
        request.schedule.name = "1f1b";
        request.virtual_stages.reset();
        changed.push_back(&request);
      }
      const bool loops = find_schedule(request.schedule.name).placement != PlacementKind::straight;
      request.search.cut_work = loops ? kLoopWork : kCutWork;
      request.search.first_that_fits = loops || searched;
      request.search.brief = true;
      request.search.time_limit.reset();
      request.search.progress = nullptr;
    }
    for (const PlanRequest* request : changed) {
      if (take(Remedy::Kind::schedule, cluster_, *request)) return std::move(found_);
    }
    const std::optional<Remedy> least = least_memory(requests);
    if (!least) return {};
    const PlanRequest& request = least->request;
    recompute(request);
    const bool one_size = std::ranges::all_of(requests, [&](const PlanRequest& other) {
      return other.micro_batch_size == request.micro_batch_size;
    });
    if (one_size) smaller_batches(request);  // otherwise others have been asked for
    more_devices(request);
    found_.push_back(*least);
    return std::move(found_);
  }

 private:
  /// What the plan needs; none where nothing fits.
  [[nodiscard]] std::optional<Bytes> fits(const Cluster& cluster, const PlanRequest& request) const {
    try {
      return make_plan(profile_, cluster, request).best.memory();
    } catch (const RefusedError&) {
      return std::nullopt;
    } catch (const InputError&) {  // not for this schedule, not with this option
      return std::nullopt;
    }
  }
  bool take(Remedy::Kind kind, const Cluster& cluster, const PlanRequest& request) {
    const std::optional<Bytes> needs = fits(cluster, request);
    if (needs) found_.push_back({kind, request, cluster, *needs});
    return needs.has_value();
  }

  /// The least memory with which one of the requests fits.
  [[nodiscard]] std::optional<Remedy> least_memory(const std::vector<PlanRequest>& requests) const {
    Cluster cluster = cluster_;
    std::optional<Remedy> least;
    Bytes refused = *cluster_.usable_memory();
    const auto one_fits = [&] {
      for (const PlanRequest& request : requests) {
        if (const auto needs = fits(cluster, request)) {
          least = {Remedy::Kind::more_memory, request, cluster_, *needs};
          least->cluster.memory = *needs + cluster_.memory_reserve;
          return true;
        }
      }
      return false;
    };
    cluster.memory.reset();
    if (!one_fits()) return least;
    while (least->needs - refused > Bytes{std::max<std::int64_t>(1, least->needs.value / kPrecision)}) {
      const Bytes cap{refused.value + (least->needs.value - refused.value) / 2};
      cluster.memory = cap + cluster.memory_reserve;
      if (!one_fits()) refused = cap;
    }
    return least;
  }

  void recompute(PlanRequest request) {
    if (!request.recompute || request.recompute == Recompute::all) return;
    request.recompute = std::nullopt;
    take(Remedy::Kind::recompute, cluster_, request);
  }

  void smaller_batches(PlanRequest request) {
    std::vector<std::int64_t> sizes;
    for (const Measurement& measurement : profile_.measurements) {
      if (measurement.micro_batch < request.micro_batch_size) sizes.push_back(measurement.micro_batch);
    }
    std::ranges::sort(sizes, std::greater{});
    const std::int64_t samples = request.micro_batch_size * request.micro_batches;
    for (const std::int64_t size : sizes) {
      const std::int64_t count = (samples + size - 1) / size;
      if (count > kMostMicroBatches) return;
      request.micro_batch_size = size;
      request.micro_batches = static_cast<int>(count);
      if (take(Remedy::Kind::smaller_batches, cluster_, request)) return;
    }
  }

  /// What fits so many devices fits more of them: doubled until something fits, then halved between.
  void more_devices(const PlanRequest& request) {
    Cluster cluster = cluster_;
    cluster.speed.clear();  // whatever theirs are: memory does not depend on it
    std::size_t level = 0;
    for (std::size_t l = 0; l < cluster.levels.size(); ++l) {
      if (cluster.levels[l].count > 1) level = l;
    }
    int& count = cluster.levels[level].count;
    const int inside = cluster_.devices() / count;
    const auto layers = static_cast<int>(profile_.at(request.micro_batch_size).layers.size());
    const int most = (std::max(std::min(kMostSuggestedDevices, 4 * layers), layers) + inside - 1) / inside;
    int refused = count;
    std::optional<Bytes> needs;
    while (!needs && refused < most) {
      count = std::min(most, 2 * refused);
      needs = fits(cluster, request);
      if (!needs) refused = count;
    }
    if (!needs) return;
    int least = count;
    while (least - refused > 1) {
      count = refused + (least - refused) / 2;
      if (const auto with = fits(cluster, request)) {
        needs = with;
        least = count;
      } else {
        refused = count;
      }
    }
    count = least;
    found_.push_back({Remedy::Kind::more_devices, request, cluster, *needs});
  }

  const Profile& profile_;
  const Cluster& cluster_;
  std::vector<Remedy> found_;
};

}  // namespace

std::vector<Remedy> remedies(const Profile& profile, const Cluster& cluster,
                             const std::vector<PlanRequest>& requests) {
  if (!cluster.memory) return {};
  return Remedies(profile, cluster).all(requests);
}

}  // namespace stagecraft
