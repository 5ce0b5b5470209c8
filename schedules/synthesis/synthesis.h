#pragma once

// A program made for the costs at hand: the order of one synchronous step on a given placement, searched for
// within the memory there is.
//
//   1. The library: programs that are handed in, every synchronous schedule's that takes the placement
//      (generators/library.h). What they price at is what there is to beat.
//   2. Seeds: their orders with backwards whole and split; each squeezed, that is scheduled again with the
//      true costs and its own order as priorities; and list schedules by general rules; all within the memory
//      cap (list_scheduling/list_scheduler.h).
//   3. Local search from the best few seeds, then from the best of all (local_search.h).
//   4. The result is lowered, proved and simulated like any program, and must beat the library there;
//      otherwise the library's best is returned.
//
// The literature has the parts: zero-bubble schedules from list scheduling and an integer program (Qi et al.,
// arXiv 2401.10241, section 3), orders searched for under a memory cap (OptPipe, arXiv 2510.05186).

#include "schedules/program/orders.h"
#include "schedules/program/program.h"
#include "schedules/program/recompute.h"
#include "schedules/simulator/results.h"
#include "schedules/synthesis/lower_bound.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct SynthesisBudget {
  /// Computations to price, over all orders: an order of n costs n. The library itself is priced in any case; 0: only
  /// that.
  /// With this alone the result follows from the request, on every machine that computes alike.
  std::int64_t work = 300'000;
  /// Asked now and then, with the best so far; false stops the search. For limits in time and for
  /// progress.
  std::function<bool(Seconds step)> go_on{};
  /// Where the bound says that nothing faster than this can come, there is no search.
  std::optional<Seconds> to_beat{};
};

/// A program to beat, with the recomputes that are asked for.
struct NamedProgram {
  std::string name;  ///< "zb_h1", "1f1b warmup_extra 2"
  ScheduleProgram program;
};

struct SynthesisRequest {
  Placement placement{};
  int micro_batches = 0;
  bool clip = false;
  const CostTable* costs = nullptr;  ///< not owned; required
  std::optional<Bytes> capacity{};   ///< usable memory per rank
  RecomputeSettings recompute{};     ///< [stage] given, not searched for
  /// As in ProgramHeader. Orders have all computations and are searched for as if all stages had a backward; what
  /// they are judged by are the programs that will run.
  StageId gradient_from{0};
  std::vector<StageId> also_load{};
  std::vector<std::vector<StageId>> ties{};
  std::optional<PartOf> part{};  ///< whose pipeline the placement is: it is priced as that
  bool goes_on = true;           ///< from step to step, where the placement and `clip` allow it
  SynthesisBudget budget{};
  std::vector<NamedProgram> library{};  ///< the first of equals wins
  /// Orders to begin with in which no rank keeps more than so many micro-batches of its stages, from their forward to
  /// their weight gradient; may be empty.
  std::function<std::vector<Orders>(int micro_batches)> keeping{};
};

/// A schedule of the library on the request's placement, as it is.
struct LibraryResult {
  std::string schedule;
  Seconds step;
  bool fits = true;  ///< proved within the capacity
};

/// No order whatever fits (synthesis/least_memory.h).
struct Impossible {
  Rank rank;    ///< that misses most
  Bytes needs;  ///< at least
};

struct Synthesis {
  ScheduleProgram program;  ///< its schedule is named "auto"
  Seconds step;  ///< as simulated: from one to the next, where ranks go on between them, else the makespan
  /// Proved within the capacity. False: nothing found fits, and this needs the least memory on its worst
  /// rank.
  bool fits = true;
  std::optional<Impossible> impossible{};  ///< then nothing is searched for
  synthesis::LowerBound bound;
  std::string from;         ///< the seed: "zb_h1", "zb_h1 squeezed", "list schedule"
  std::int64_t orders = 0;  ///< orders priced
  std::vector<LibraryResult> library;

  /// By how much of the bound the step is above it.
  [[nodiscard]] double gap() const {
    return bound.seconds > 0 ? std::max(0.0, step.value / bound.seconds - 1) : 0;
  }
  /// No program can be faster.
  [[nodiscard]] bool optimal() const { return fits && synthesis::meets(step.value, bound.seconds); }
};

/// Throws RefusedError when the proof refuses every program, as for costs beyond its bounds; InputError for a
/// placement or number of micro-batches that cannot be.
[[nodiscard]] Synthesis synthesize(const SynthesisRequest& request);

}  // namespace stagecraft
