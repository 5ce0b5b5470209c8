#include "profiler/layer_classes.h"

#include "profiler/statistics.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

namespace stagecraft {
namespace {

using Classes = std::map<std::string, std::vector<int>>;

/// Layers that may be left out, by class. The first one is not, nor is the first one with a backward: that makes no
/// gradient of its input. Frozen ones are a class of their own.
Classes classes_of(const Model& model) {
  const std::vector<BoundarySpec> tensors = boundaries(model, 2);
  Classes classes;
  for (std::size_t i = 1; i < model.layers.size(); ++i) {
    const std::string name = model.layers[i]->facts().cost_class;
    const BoundarySpec &in = tensors[i], &out = tensors[i + 1];
    const auto from = static_cast<std::size_t>(model.gradient_from);
    if (name.empty() || in.values != out.values || i == from) continue;
    classes[i < from ? "frozen " + name : name].push_back(static_cast<int>(i));
  }
  return classes;
}

LayerClasses with_representatives(const Model& model, const Classes& classes, std::size_t representatives) {
  LayerClasses found;
  found.left_out.resize(model.layers.size());
  for (int i = 0; i < static_cast<int>(model.layers.size()); ++i) found.alike.push_back({i});
  for (const auto& [name, members] : classes) {
    if (members.size() <= representatives) continue;
    std::vector<int> run;
    for (std::size_t k = 0; k < representatives; ++k) {
      const std::size_t gaps = std::max<std::size_t>(1, representatives - 1);
      run.push_back(members[k * (members.size() - 1) / gaps]);
    }
    for (const int member : members) {
      if (std::find(run.begin(), run.end(), member) != run.end()) continue;
      found.left_out[static_cast<std::size_t>(member)] = true;
      found.alike[static_cast<std::size_t>(member)] = run;
    }
  }
  return found;
}

/// Of parameters and their gradients.
Bytes weight_bytes(const Model& model, const LayerClasses& classes) {
  Bytes sum;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Bytes one = parameter_bytes(model, static_cast<int>(i));
    if (!classes.left_out[i]) sum += one + one;
  }
  return sum;
}

/// Of the last-level cache that one core reaches; 0 where the machine does not say. sysconf() counts those of
/// all cores on some processors.
Bytes cache_bytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::int64_t size = 0;
  char unit = 0;
  if (!(file >> size >> unit)) return {};
  return Bytes{size * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1)};
}

}  // namespace

int LayerClasses::count_left_out() const {
  return static_cast<int>(std::count(left_out.begin(), left_out.end(), true));
}

LayerClasses layer_classes(const Model& model, int representatives) {
  LayerClasses all = with_representatives(model, {}, 1);
  if (representatives == 0) return all;
  const Classes classes = classes_of(model);
  const bool fits = weight_bytes(model, all) <= cache_bytes();
  for (auto run = static_cast<std::size_t>(representatives);; run *= 2) {
    LayerClasses found = with_representatives(model, classes, run);
    if (found.count_left_out() == 0 || fits || weight_bytes(model, found) > cache_bytes()) return found;
  }
}

void fill_left_out(const LayerClasses& classes, std::vector<LayerProfile>& layers) {
  for (std::size_t i = 0; i < classes.left_out.size(); ++i) {
    if (!classes.left_out[i]) continue;
    std::vector<const LayerProfile*> alike;
    for (const int layer : classes.alike[i]) alike.push_back(&layers[static_cast<std::size_t>(layer)]);
    LayerProfile made = *alike.front();
    made.name = layers[i].name;
    made.measured_as = alike.front()->name;
    for (Timing LayerProfile::*part : {&LayerProfile::forward, &LayerProfile::backward_input,
                                       &LayerProfile::backward_weight, &LayerProfile::step}) {
      std::vector<Seconds> medians;
      Seconds spread;
      for (const LayerProfile* layer : alike) {
        medians.push_back((layer->*part).median);
        spread = std::max(spread, (layer->*part).spread);
      }
      made.*part = {timing_of(medians).median, spread};
    }
    layers[i] = std::move(made);
  }
}

}  // namespace stagecraft
