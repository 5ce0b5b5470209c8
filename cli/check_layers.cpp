// `check-layers CONFIG`: tries each layer of a config's model, and its loss, against their contract.

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/training_inputs.h"
#include "engine/run/show/progress.h"
#include "models/check/model_check.h"
#include "models/tensors/libtorch_error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

namespace stagecraft::cli {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

/// Samples [first, first + count) of the training data.
ModelInput read(const TrainingInputs& materials, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  const Dataset& data = materials.data->uncut();
  ModelInput input;
  input.inputs = data.inputs(Split::train, samples);
  if (materials.loss->reads_targets()) input.targets = data.targets(Split::train, samples);
  const Model& model = materials.model;
  input.fields =
      read_fields(data, Split::train,
                  model.fields_of(0, static_cast<int>(model.layers.size()), materials.loss.get()), samples);
  return input;
}

/// As few samples as show all there is: two, so that they can mix, or as many as the layers need; one more in the second
/// micro-batch where there are enough, so that nothing of one fits the other by chance.
std::vector<LayerReport> check(const Options& options) {
  const RunConfig config = read_run_config(options.config, options.overrides);
  check_device(config, options.config);
  if (config.device != DeviceKind::cpu) {
    note("layers are tried on the CPU: nothing is said of their kernels on GPUs, which the run takes");
  }
  const TrainingInputs materials = open_training_inputs(config, options.config);
  std::int64_t count = 2;
  const std::vector<BoundarySpec> shapes = boundaries(materials.model, 1);
  for (std::size_t i = 0; i < materials.model.layers.size(); ++i) {
    const std::vector<std::int64_t>& shape = shapes[i].shape;
    const std::vector<std::int64_t> sample(shape.empty() ? shape.begin() : shape.begin() + 1, shape.end());
    count = std::max(count, materials.model.layers[i]->least_samples(sample));
  }
  const std::int64_t samples = materials.data->uncut().size(Split::train);
  count = std::min(count, samples);
  const bool more = 2 * count + 1 <= samples;
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  ProgressBar bar(0, static_cast<std::int64_t>(materials.model.layers.size()),
                  terminal ? Print([](const std::string& text) { complain(text); }) : Print());
  Stopwatch watch;
  return check_layers(materials.model, *materials.loss, config.seed, read(materials, 0, count),
                      more ? read(materials, count, count + 1) : read(materials, samples - count, count),
                      [&](std::size_t done) { bar.update(static_cast<std::int64_t>(done), watch.read()); });
}

std::string name_of(const LayerReport& report) {
  return report.type.empty() ? "the loss" : fmt::format("layer \"{}\" ({})", report.layer, report.type);
}

std::string cell(const Checked& checked) {
  switch (checked.result) {
    case Checked::Result::failed:
      return "FAILED";
    case Checked::Result::none:
      return "-";
    case Checked::Result::passed:
      break;
  }
  return checked.said.empty() ? "ok" : checked.said;
}

void show(const std::vector<LayerReport>& reports) {
  Table table({"<layer", "<kind", "<gives", "<input gradient", "<weight gradients", "<in place",
               "<deterministic", "<micro-batches", "<evaluation"});
  for (const LayerReport& report : reports) {
    const LayerChecked& checked = report.checked;
    table.row({report.alike.empty() ? report.layer
                                    : fmt::format("{} (and {} like it)", report.layer, report.alike.size()),
               report.type, cell(checked[Aspect::output]), cell(checked[Aspect::input_gradient]),
               cell(checked[Aspect::weight_gradients]), cell(checked[Aspect::in_place]),
               cell(checked[Aspect::deterministic]), cell(checked[Aspect::micro_batches]),
               cell(checked[Aspect::evaluation])});
  }
  print(table.text());
  for (const LayerReport& report : reports) {
    for (const std::string& line : report.checked.failures()) {
      print(fmt::format("\n{}: {}\n", name_of(report), line));
    }
  }
  const bool captured = std::any_of(reports.begin(), reports.end(), [](const LayerReport& report) {
    return report.checked[Aspect::input_gradient].said == "as captured" ||
           report.checked[Aspect::weight_gradients].said == "as captured";
  });
  if (captured) {
    print(
        "\nas captured: not compared here. stagecraft-capture compared these gradients with those of the "
        "PyTorch module; manifest.json has the result.\n");
  }
}

Json to_json(const std::string& file, const std::vector<LayerReport>& reports) {
  Json all = Json::array();
  bool passed = true;
  for (const LayerReport& report : reports) {
    Json checks = Json::object();
    for (std::size_t i = 0; i < report.checked.aspects.size(); ++i) {
      const Checked& checked = report.checked.aspects[i];
      if (checked.result == Checked::Result::none) continue;
      checks[enum_names<Aspect>[i]] = {{"passed", checked.result == Checked::Result::passed},
                                       {"said", checked.said}};
    }
    passed = passed && report.checked.passed();
    all.push_back({{"layer", report.layer},
                   {"type", report.type},
                   {"alike", report.alike},
                   {"passed", report.checked.passed()},
                   {"checks", std::move(checks)}});
  }
  return {{"file", file}, {"device", "cpu"}, {"passed", passed}, {"layers", std::move(all)}};
}

void run(const Options& options) {
  const std::vector<LayerReport> reports = named([] { return ""; }, [&] { return check(options); });
  if (options.json) {
    print_json(to_json(options.config, reports));
  } else {
    show(reports);
  }
  std::vector<std::string> broken;
  for (const LayerReport& report : reports) {
    if (!report.checked.passed()) broken.push_back(name_of(report));
  }
  if (broken.empty()) return;
  constexpr std::size_t kMostNamed = 3;
  const std::size_t shown = std::min(broken.size(), kMostNamed);
  std::string names =
      fmt::format("{}", fmt::join(broken.begin(), broken.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (broken.size() > shown) names += fmt::format(" and {} more", broken.size() - shown);
  throw RefusedError(fmt::format(
      "{}: {} {} the contract (stagecraft/models/layers/layer.h, loss.h): mend what is said of {}",
      options.config, names, broken.size() == 1 ? "breaks" : "break", broken.size() == 1 ? "it" : "each"));
}

}  // namespace

void add_check_layers(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("check-layers",
                                      "try a run's layers and its loss against their contract, on the CPU");
  verb->add_option("CONFIG", options->config, "run.json")->required()->type_name("FILE");
  verb->add_option("--set", options->overrides,
                   "a value in the config, as in --set data.path=DIR; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->group("What is tried");
  verb->add_flag("--json", options->json, "one JSON document instead of a table")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
