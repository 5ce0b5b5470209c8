#include "engine/run/show/printing.h"

#include "base/table.h"
#include "base/text.h"
#include "engine/optimizers/staleness_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft {
namespace {

std::int64_t parameters_of(const Layer& layer) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : layer.parameters()) {
    std::int64_t size = 1;
    for (const std::int64_t n : spec.shape) size *= n;
    count += size;
  }
  return count;
}

std::string count_of(std::int64_t count) {
  return count == 0 ? "" : format_count(static_cast<double>(count));
}

std::string model_table(const RunSetup& setup) {
  const Model& model = setup.inputs().model;
  const std::vector<BoundarySpec> shapes = boundaries(model, setup.config().micro_batch_size);
  Table table({"layer", "<name", "<type", "parameters", "<output of a micro-batch"});
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = *model.layers[i];
    table.row({fmt::format("{}", i), layer.name(), layer.facts().type, count_of(parameters_of(layer)),
               fmt::format("{}", fmt::join(shapes[i + 1].shape, " x "))});
  }
  return fmt::format("Model: {}, {} parameters in {}, {}\n{}{}\n", model.name,
                     format_count(static_cast<double>(model.parameter_count())),
                     plural(static_cast<std::int64_t>(model.layers.size()), "layer"),
                     setup.inputs().model.precision.name(), table.text(),
                     model.note.empty() ? "" : model.note + "\n");
}

std::string data_line(const RunSetup& setup) {
  return fmt::format("Data: {}\n\n", setup.inputs().data->summary());
}

std::string layer_range(const RunSetup& setup, std::size_t stage) {
  const auto [first, last] = setup.layers_of_stages()[stage];
  const Model& model = setup.inputs().model;
  const auto name = [&](int layer) { return model.layers[static_cast<std::size_t>(layer)]->name(); };
  if (last - first == 1) return fmt::format("{} {}", first, name(first));
  return fmt::format("{}-{} {} ... {}", first, last - 1, name(first), name(last - 1));
}

/// Predicted times where the plan has costs: what the report will hold the run against.
std::string plan_table(const RunSetup& setup) {
  const Plan& plan = setup.plan();
  const Model& model = setup.inputs().model;
  Table table({"stage", "rank", "<layers", "parameters", "forward ms", "backward ms", "sends"});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::int64_t parameters = 0;
    const auto [first, last] = setup.layers_of_stages()[s];
    for (int i = first; i < last; ++i)
      parameters += parameters_of(*model.layers[static_cast<std::size_t>(i)]);
    std::vector<int> ranks;
    for (const Rank rank : plan.stages[s].ranks) ranks.push_back(rank.value);
    std::vector<Table::Cell> row{fmt::format("{}", s), fmt::format("{}", fmt::join(ranks, ",")),
                                 layer_range(setup, s), count_of(parameters)};
    if (plan.costs) {
      const StageCosts& costs = plan.costs->stages[s];
      row.insert(row.end(), {costs.forward, costs.backward_input + costs.backward_weight,
                             s + 1 < plan.stages.size() ? format_bytes(costs.output) : ""});
    } else {
      row.insert(row.end(), {"", "", ""});
    }
    table.row(std::move(row));
  }
  std::string text = fmt::format("Plan: {} stage{}\n{}", plan.stages.size(),
                                 plan.stages.size() == 1 ? "" : "s", table.text());
  for (const Skip& skip : plan.skips) {
    text += fmt::format("  stage {} sends{} directly to stage {}\n", skip.from.value,
                        plan.costs ? " " + format_bytes(plan.costs->skip(skip.from, skip.to)) : "",
                        skip.to.value);
  }
  if (plan.predicted) {
    text += fmt::format("  predicted: {} per step, bubble {}\n", format_duration(plan.predicted->step),
                        format_percent(plan.predicted->bubble));
  }
  return text + "\n";
}

std::string schedule_table(const RunSetup& setup) {
  const Proof& proof = setup.programs().proof();
  const Plan& plan = setup.plan();
  Table table({"stage", "rank", "in flight", "versions", "staleness"});
  for (const StageProof& stage : proof.stages) {
    table.row({fmt::format("{}", stage.stage.value), fmt::format("{}", stage.rank.value),
               fmt::format("{}", stage.in_flight), fmt::format("{}", stage.versions_alive),
               stage.staleness_min == stage.staleness_max
                   ? fmt::format("{}", stage.staleness_max)
                   : fmt::format("{}-{}", stage.staleness_min, stage.staleness_max)});
  }
  const int extra = plan.schedule.warmup_extra;
  return fmt::format("Schedule: {}{}{}{}, {} receive slot{} per channel; {} program shape{} proved\n{}\n",
                     plan.schedule.name, plan.schedule.vertical_sync ? " with vertical sync" : "",
                     extra > 0 ? fmt::format(" with {} extra forward{}", extra, extra == 1 ? "" : "s") : "",
                     recompute_words(plan.recompute()), proof.slots_per_channel,
                     proof.slots_per_channel == 1 ? "" : "s", setup.programs().count(),
                     setup.programs().count() == 1 ? "" : "s", table.text());
}

std::string batch_lines(const RunSetup& setup) {
  const RunConfig& config = setup.config();
  const RunShape& shape = setup.shape();
  const int m = config.micro_batches();
  const std::int64_t rest = config.train_batch_size % config.micro_batch_size;
  std::string text =
      fmt::format("Batch: {} per step = {} micro-batch{} of {}{}\n",
                  plural(config.train_batch_size, "sample"), m, m == 1 ? "" : "es", config.micro_batch_size,
                  rest == 0 ? "" : fmt::format(", the last one of {}", rest));
  const std::int64_t epoch = steps_per_epoch(shape);
  text += fmt::format("  {} {} {} per epoch; {} {} {:.2f} epochs\n", plural(shape.samples, "training sample"),
                      shape.samples == 1 ? "makes" : "make", plural(epoch, "step"),
                      plural(shape.steps, "step"), shape.steps == 1 ? "is" : "are",
                      static_cast<double>(shape.steps) / static_cast<double>(epoch));
  if (const auto& decay = config.optimizer.ema_decay) {
    text += fmt::format("  validation and export read averaged weights (decay {:g} per step)\n", *decay);
  }
  if (const std::string advice = staleness_advice(config.optimizer, setup.programs().lateness());
      !advice.empty()) {
    text += "  warning: " + advice + "\n";
  }
  if (setup.start().step > 0) {
    text += fmt::format("  going on from {} after step {}\n", setup.start().checkpoint, setup.start().step);
  }
  return text + "\n";
}

std::string memory_table(const RunSetup& setup) {
  const std::vector<Bytes>& peaks = setup.programs().memory();
  if (peaks.empty()) return "Memory: not proved, the plan has no costs\n\n";
  Table table(
      {"rank", "peak", "weights", "versions", "gradients", "optimizer", "kept", "transfers", "transient"});
  for (const MemoryProof& memory : setup.programs().proof().memory) {
    table.row({fmt::format("{}", memory.rank.value), format_bytes(peaks[memory.rank.index()]),
               format_bytes(memory.weights), format_bytes(memory.versions), format_bytes(memory.gradients),
               format_bytes(memory.optimizer_state), format_bytes(memory.kept),
               format_bytes(memory.transfers), format_bytes(memory.transient)});
  }
  return fmt::format(
      "Memory per rank, proved{}\n{}\n",
      setup.plan().capacity ? fmt::format(" (of {})", format_bytes(*setup.plan().capacity)) : "",
      table.text());
}

std::string prefix(const char* what, const MetricsRecord& record, std::int64_t steps) {
  const std::string total = fmt::format("{}", steps);
  return fmt::format("{} {:>{}}/{}", what, record.step, total.size(), total);
}

/// A line has room for a few.
std::string terms_text(const MetricsRecord& record) {
  constexpr int kMostShown = 4;
  std::string text;
  int shown = 0;
  for (const auto& [name, term] : record.terms) {
    if (++shown > kMostShown) break;
    text += fmt::format("   {} {:<7.4g}", name, term);
  }
  return text;
}

}  // namespace

std::string start_up_tables(const RunSetup& setup) {
  return model_table(setup) + data_line(setup) + plan_table(setup) + schedule_table(setup) +
         memory_table(setup) + batch_lines(setup);
}

std::string next_plan_tables(const RunSetup& setup) {
  return fmt::format("Step {} is made with another plan.\n\n", setup.start().step + 1) + plan_table(setup);
}

std::string step_line(const MetricsRecord& record, std::int64_t steps, std::optional<Seconds> left) {
  std::string line =
      fmt::format("{}   loss {:<9.6g}{}", prefix("step ", record, steps), record.loss, terms_text(record));
  if (record.gradient_norm) line += fmt::format("   norm {:<7.4g}", *record.gradient_norm);
  if (record.loss_scale) line += fmt::format("   scale {:<6.4g}", *record.loss_scale);
  if (record.skipped) line += "   overflow, step left out";
  if (record.learning_rate) line += fmt::format("   lr {:.2e}", *record.learning_rate);
  line += fmt::format("   {:>9}", format_duration(Seconds{record.ms / 1e3}));
  line += record.tokens_per_second
              ? fmt::format("   {:>8} tokens/s", format_count(*record.tokens_per_second))
              : fmt::format("   {:>8} samples/s", format_count(record.samples_per_second));
  constexpr Seconds kWorthSaying{60};
  return left && *left >= kWorthSaying ? line + fmt::format("   {} left", format_duration(*left)) : line;
}

std::string validation_line(const MetricsRecord& record, std::int64_t steps, const Loss& loss) {
  const bool tokens = loss.targets() == Targets::tokens;
  const char* unit = loss.reduction() == Reduction::sum ? " (sum)" : tokens ? " nats/token" : "";
  if (record.no_targets) {
    return prefix("valid", record, steps) +
           "   no loss: no target of the validation data counts (all are ones that the loss leaves out)";
  }
  std::string line = fmt::format("{}   loss {:.6g}{}{}", prefix("valid", record, steps), record.loss, unit,
                                 terms_text(record));
  if (record.accuracy) line += fmt::format("   accuracy {}", format_percent(*record.accuracy));
  return line + fmt::format("   {}", format_duration(Seconds{record.ms / 1e3}));
}

}  // namespace stagecraft
