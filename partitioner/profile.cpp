#include "partitioner/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace stagecraft {

const Measurement& Profile::at(std::int64_t micro_batch) const {
  std::vector<std::int64_t> sizes;
  for (const Measurement& measurement : measurements) {
    if (measurement.micro_batch == micro_batch) return measurement;
    sizes.push_back(measurement.micro_batch);
  }
  throw InputError(fmt::format(
      "the profile{} has no measurement of micro-batches of {} samples, only of {}; measure it with "
      "`stagecraft profile --micro-batch-sizes {}` or plan with one of those",
      model.empty() ? "" : " of " + model, micro_batch, fmt::join(sizes, ", "), micro_batch));
}

void validate(const Profile& profile, const std::string& file) {
  std::set<std::int64_t> sizes;
  const std::vector<LayerProfile>& reference = profile.measurements.front().layers;
  for (std::size_t m = 0; m < profile.measurements.size(); ++m) {
    const Measurement& measurement = profile.measurements[m];
    const std::string here = fmt::format("/measurements/{}", m);
    if (!sizes.insert(measurement.micro_batch).second) {
      throw InputError({file, here + "/micro_batch"},
                       fmt::format("the size {} was measured before; keep one", measurement.micro_batch));
    }
    if (measurement.layers.size() != reference.size()) {
      throw InputError({file, here + "/layers"}, fmt::format("{} layers, but {} in the first measurement",
                                                             measurement.layers.size(), reference.size()));
    }
    std::set<std::string> names;
    for (std::size_t i = 0; i < reference.size(); ++i) {
      const LayerProfile& layer = measurement.layers[i];
      const std::string at = fmt::format("{}/layers/{}", here, i);
      if (!names.insert(layer.name).second) {
        throw InputError({file, at + "/name"}, fmt::format("\"{}\" is there twice", layer.name));
      }
      if (layer.name != reference[i].name) {
        throw InputError({file, at + "/name"}, fmt::format("\"{}\", but \"{}\" in the first measurement",
                                                           layer.name, reference[i].name));
      }
      if (layer.parameters != reference[i].parameters) {
        throw InputError({file, at + "/parameter_bytes"},
                         fmt::format("{}, but {} in the first measurement: weights do not depend on the "
                                     "micro-batch",
                                     layer.parameters.value, reference[i].parameters.value));
      }
    }
  }
}

Profile read_profile(const std::string& path) {
  auto profile = json::read_file<Profile>(path);
  validate(profile, path);
  return profile;
}

}  // namespace stagecraft
