#pragma once

// plan.json: which layers make which stage on which ranks, under which schedule, and what was predicted for
// it. A plan carries the cost table it was priced with, so `check` and `simulate` need nothing else. One
// written by hand needs only `stages`, `schedule`, `micro_batches` and `micro_batch_size`.

#include "schedules/generators/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct StagePlan {
  int first_layer = 0, last_layer = 0;
  std::vector<Rank> ranks;
  Recompute recompute = Recompute::none;
  bool loads = false;
  bool operator==(const StagePlan&) const = default;
};

void describe(auto& v, StagePlan& s) {
  v.required("first_layer", s.first_layer, "index of the first layer", json::at_least(0));
  v.required("last_layer", s.last_layer, "one past the index of the last layer", json::at_least(1));
  v.required("ranks", s.ranks, "the replicas of the stage, in order", json::non_empty());
  v.optional("recompute", s.recompute,
             "which forwards are repeated before their backward, so that nothing but their input is kept "
             "meanwhile; all_but_last: all but the last micro-batch of a step");
  v.optional("loads", s.loads,
             "whether its layers read fields of the batch besides their input, such as masks; the first and "
             "the last stage load anyway");
  v.require(s.last_layer > s.first_layer, "last_layer",
            "a stage needs at least one layer: last_layer must be above first_layer");
}

struct ScheduleChoice {
  std::string name = "1f1b";
  bool vertical_sync = false, agree_norm = false;
  int warmup_extra = 0;
};

void describe(auto& v, ScheduleChoice& s) {
  v.required("name", s.name, "the schedule's name");
  v.optional("vertical_sync", s.vertical_sync, "pipedream: one version per micro-batch on all stages");
  v.optional("agree_norm", s.agree_norm,
             "synchronous: each step waits for the gradient's global norm; of a run, its config decides");
  v.optional("warmup_extra", s.warmup_extra, "1f1b: forwards more before the first backward; hides transfers",
             json::at_least(0));
}

/// Of one step. A million make a program of gigabytes already.
inline constexpr int kMostMicroBatches = 1'000'000;

/// What every rank computes in a step, where a search found an order that no generator makes.
struct PlannedOrders {
  int micro_batches = 0;
  std::vector<std::string> ranks;  ///< as program.h writes them; recomputes follow from the stages
};

void describe(auto& v, PlannedOrders& p) {
  v.required("micro_batches", p.micro_batches, "of the step it is for", json::between(1, kMostMicroBatches));
  v.required("ranks", p.ranks, "what each rank computes: \"F0 F1 I0 W0 ...\"", json::non_empty());
}

struct Prediction {
  Seconds step, step_ideal;  ///< from one to the next, once steady
  double bubble = 0;
  Seconds bottleneck;  ///< compute alone
  std::vector<Bytes> memory;
};

void describe(auto& v, Prediction& p) {
  v.required("step_ms", p.step, "from one optimizer step to the next, once steady", json::at_least(0));
  v.optional("step_ideal_ms", p.step_ideal, "the same with free communication", json::at_least(0));
  v.optional("bubble", p.bubble, "idle share of the mean rank");
  v.optional("bottleneck_ms", p.bottleneck, "busiest rank, one micro-batch", json::at_least(0));
  v.optional("memory_bytes", p.memory, "proven peak per rank");
}

struct Plan {
  std::string model, model_fingerprint;
  std::string dtype = "float32";
  std::vector<StagePlan> stages;
  std::vector<std::vector<StageId>> ties{};  ///< as in ProgramHeader
  std::vector<Skip> skips{};                 ///< likewise
  StageId gradient_from{0};                  ///< likewise
  ScheduleChoice schedule;
  std::optional<PlannedOrders> program;
  int micro_batches = 1;
  std::int64_t micro_batch_size = 1;
  std::optional<CostTable> costs;
  std::optional<int> threads;
  std::optional<Bytes> capacity;
  std::optional<Prediction> predicted;

  [[nodiscard]] int layers() const { return stages.empty() ? 0 : stages.back().last_layer; }
  [[nodiscard]] Placement placement() const {
    Placement placement;
    for (const StagePlan& stage : stages) placement.ranks.push_back(stage.ranks);
    return placement;
  }
  /// First layers of stages 1, 2, ...
  [[nodiscard]] std::vector<int> cuts() const {
    std::vector<int> cuts;
    for (std::size_t s = 1; s < stages.size(); ++s) cuts.push_back(stages[s].first_layer);
    return cuts;
  }
  /// As in ProgramHeader.
  [[nodiscard]] std::vector<StageId> also_load() const {
    std::vector<StageId> also;
    for (std::size_t s = 1; s + 1 < stages.size(); ++s) {
      if (stages[s].loads) also.emplace_back(s);
    }
    return also;
  }
  /// Per stage.
  [[nodiscard]] RecomputeSettings recompute() const {
    RecomputeSettings settings;
    for (const StagePlan& stage : stages) settings.push_back(stage.recompute);
    return settings;
  }
  /// Whether the stage has backwards and steps.
  [[nodiscard]] bool has_backward(StageId stage) const { return stage >= gradient_from; }
  /// What a micro-batch takes on a replica of the stage, recomputation included; the mean over a step.
  [[nodiscard]] Seconds compute_time(StageId stage) const;
  /// Likewise on each rank, of all its stages.
  [[nodiscard]] std::vector<Seconds> compute_of_ranks() const;
};

void describe(auto& v, Plan& p) {
  v.optional("model", p.model, "name for people");
  v.optional("model_fingerprint", p.model_fingerprint,
             "a run of another model refuses the plan; empty: structural checks only");
  v.optional("dtype", p.dtype, "that layers compute in; parameters are float32 where it is a narrower one");
  v.required("stages", p.stages, "in model order", json::non_empty());
  v.optional(
      "ties", p.ties,
      "for each weight that several layers hold the stages of those layers, in their order; of a run, its "
      "model decides");
  v.optional(
      "skips", p.skips,
      "what goes directly between stages that are no neighbours, ascending; of a run, its model decides");
  v.optional(
      "gradient_from", p.gradient_from,
      "the first stage with a trained weight: those before it are frozen, and have forwards alone; of a run, "
      "its model decides");
  v.required("schedule", p.schedule, "the program's generator");
  v.optional("program", p.program,
             "the order of one step that was searched for; absent: the schedule makes it");
  v.required("micro_batches", p.micro_batches, "of one step", json::between(1, kMostMicroBatches));
  v.required("micro_batch_size", p.micro_batch_size, "samples", json::at_least(1));
  v.optional("costs", p.costs, "what the plan was priced with");
  v.optional("threads", p.threads, "operator threads per rank behind the costs", json::at_least(1));
  v.optional("capacity_bytes", p.capacity, "usable memory per device");
  v.optional("predicted", p.predicted, "what the simulator says");
}

/// The stage that holds a layer. `cuts` are the first layers of stages 1, 2, ...
[[nodiscard]] StageId stage_of_layer(const std::vector<int>& cuts, int layer);

/// Stages contiguous from layer 0, ranks 0..n-1 each used, cost table of matching length, known schedule.
/// A program, if there is one, is for as many micro-batches, complete, and accepted by the checker but for
/// its memory. Throws InputError with `file` and the pointer.
void validate(const Plan& plan, const std::string& file);
[[nodiscard]] Plan read_plan(const std::string& path);  ///< parse, read, validate

/// The plan's program of one segment, `group_sizes` micro-batches per group: the plan's own for a step of its
/// size, otherwise (the shorter last step of an epoch) what the schedule generates.
[[nodiscard]] ScheduleProgram plan_program(const Plan& plan, std::vector<int> group_sizes);
/// Whether two plans of the same schedule and micro-batches run the same program, where that does not follow the costs
/// and the plans carry none.
[[nodiscard]] bool same_program(const Plan& a, const Plan& b);

/// What a schedule is asked for under a plan's choice; costs and capacity are left to the caller.
[[nodiscard]] ScheduleRequest schedule_request(const ScheduleChoice& choice, Placement placement,
                                               std::vector<int> group_sizes, RecomputeSettings recompute);

/// The form in which a plan carries a synchronous program of one step.
[[nodiscard]] PlannedOrders planned_orders(const ScheduleProgram& program);

/// The program of one step that the plan carries, in order of its lines. Throws InputError with `file` and
/// the pointer for what cannot be read.
[[nodiscard]] ScheduleProgram carried_program(const Plan& plan, const std::string& file);

/// Throws InputError unless the carried program is for the plan's step and the checker accepts it.
void validate_carried(const Plan& plan, const std::string& file);

/// The groups a plan is priced and proved with: one for a synchronous schedule; for an asynchronous one
/// enough that the pipeline is in its steady state, however many stages and however small the groups.
[[nodiscard]] std::vector<int> segment_groups(const Schedule& schedule, int stages, int micro_batches);

/// Proves the plan's program within its capacity (RefusedError otherwise) and simulates it with its cost
/// table, which it must have. Asynchronous: all figures are of one step of the steady state, the difference
/// between segments of segment_groups() and of twice as many.
[[nodiscard]] Prediction predict(const Plan& plan);

}  // namespace stagecraft
