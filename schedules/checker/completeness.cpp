// Proof 1: completeness. Every piece of work is there once, and stands behind everything that it needs on its
// own rank. (What it needs from other ranks comes through a wait_receive, which the matching and deadlock
// proofs follow.)

#include "stagecraft/schedules/checker/proofs.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

class Completeness {
 public:
  Completeness(const ProgramIndex& subject, Findings& findings) : subject_(subject), findings_(findings) {}

  void run() {
    for (int s = 0; s < subject_.stages(); ++s) {
      for (int mb = 0; mb < subject_.micro_batches() && !findings_.full(); ++mb) {
        check_forward(StageId{s}, MicroBatch{mb});
        check_backward(StageId{s}, MicroBatch{mb});
        check_source(Payload::activation, StageId{s}, MicroBatch{mb});
        check_source(Payload::gradient, StageId{s}, MicroBatch{mb});
      }
    }
  }

 private:
  void add(const std::string& message) { findings_.add(Finding::Kind::completeness, message); }

  void missing(const char* what, StageId stage, MicroBatch mb) {
    add(fmt::format("rank {}: no {} of micro-batch {} on stage {}; expected one",
                    subject_.rank_of(stage, mb).value, what, mb.value, stage.value));
  }

  void needs(ActionPlace here, ActionPlace what, const char* wanted) {
    if (!what.before(here)) add(out_of_place(subject_, here, what, wanted));
  }

  void check_forward(StageId stage, MicroBatch mb) {
    const ActionPlace forward = subject_.work(stage, mb).forward;
    if (!forward.found()) return missing("forward", stage, mb);
    if (stage.value == 0 || subject_.is_last(stage)) {
      needs(forward, subject_.load(stage, mb), "the load of its data");
    }
    if (stage.value > 0) {
      const StageId previous{stage.value - 1};
      check_input(forward, Payload::activation, previous, stage, mb, subject_.work(previous, mb).forward);
    }
  }

  void check_backward(StageId stage, MicroBatch mb) {
    const MicroBatchPlaces& work = subject_.work(stage, mb);
    if (!subject_.train()) {
      if (work.recompute.found())
        add(subject_.name(work.recompute) + ": validation keeps nothing to recompute");
      return;
    }
    if (!work.weight_part.found()) missing("backward (weight part)", stage, mb);
    if (!work.input_part.found()) return missing("backward (input part)", stage, mb);
    needs(work.input_part, work.forward, "its forward");
    if (work.weight_part.found() && work.weight_part != work.input_part) {
      needs(work.weight_part, work.input_part, "its input part");
    }
    if (work.recompute.found()) {
      needs(work.recompute, work.forward, "its forward");
      needs(work.input_part, work.recompute, "its recompute");
    }
    if (!subject_.is_last(stage)) {
      const StageId next{stage.value + 1};
      check_input(work.input_part, Payload::gradient, next, stage, mb, subject_.work(next, mb).input_part);
    }
  }

  /// What `here` reads was made by `producer` on this rank, or received and waited for.
  void check_input(ActionPlace here, Payload payload, StageId from, StageId to, MicroBatch mb,
                   ActionPlace producer) {
    if (subject_.hand_off(from, to, mb)) {
      if (producer.before(here)) return;
      return add(out_of_place(
          subject_, here, producer,
          fmt::format("the {} that stage {} hands over on this rank", enum_name(payload), from.value)));
    }
    const Tag tag{payload, from, to, mb, 0};
    const ActionPlace wait = subject_.transfer(tag).wait;
    if (!wait.before(here)) add(out_of_place(subject_, here, wait, "the wait for " + describe_tag(tag)));
  }

  /// What `stage` sends of `mb` must have been made.
  void check_source(Payload payload, StageId stage, MicroBatch mb) {
    const bool forward = payload == Payload::activation;
    const StageId to{forward ? stage.value + 1 : stage.value - 1};
    const ActionPlace start = subject_.transfer(Tag{payload, stage, to, mb, 0}).start;
    if (!start.found()) return;
    const MicroBatchPlaces& work = subject_.work(stage, mb);
    needs(start, forward ? work.forward : work.input_part,
          forward ? "the forward that makes it" : "the backward that makes it");
  }

  const ProgramIndex& subject_;
  Findings& findings_;
};

}  // namespace

std::string out_of_place(const ProgramIndex& subject, ActionPlace here, ActionPlace what,
                         const std::string& wanted) {
  if (!what.found()) return fmt::format("{}: needs {}, which is nowhere", subject.name(here), wanted);
  return fmt::format("{}: needs {}, which comes only later: {}", subject.name(here), wanted,
                     subject.name(what));
}

void prove_completeness(const ProgramIndex& subject, Findings& findings) {
  Completeness(subject, findings).run();
}

}  // namespace stagecraft::checker
