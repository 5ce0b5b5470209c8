// Eager 1F1B (Zhuang et al., "On Optimizing the Communication of Model Parallelism", arXiv 2211.05322, section
// 4): stage s forwards 2 (p - s) - 1 micro-batches before its first backward, about twice as many as 1F1B. Each
// transfer then has a forward's time to arrive in, for up to twice the kept activations.

#include <stagecraft/planner.h>

namespace {

stagecraft::ScheduleProgram build(const stagecraft::ScheduleRequest& request) {
  const int stages = request.placement.stages();
  return stagecraft::flushed_program(
      stagecraft::training_header("eager_1f1b", request), request.clip,
      [=](const stagecraft::ReplicaList& list) { return 2 * (stages - list.stage().value) - 2; });
}

}  // namespace

int main(int argc, char** argv) {
  stagecraft::add_schedule({.name = "eager_1f1b",
                            .summary = "1F1B with twice the warm-up: transfers hide behind forwards",
                            .paper = "arXiv 2211.05322",
                            .synchronous = true,
                            .build = build});
  return stagecraft::run_command_line(argc, argv);
}
