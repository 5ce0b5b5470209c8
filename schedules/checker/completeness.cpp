// Proof 1: completeness. Every piece of work is there once, and stands behind everything that it needs on its
// own rank. (What it needs from other ranks comes through a wait_receive, which the matching and deadlock
// proofs follow.)

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

class Completeness : ProofOf {
 public:
  Completeness(const ProgramIndex& index, Findings& findings)
      : ProofOf(Finding::Kind::completeness, index, findings) {}

  void run() {
    for (int s = 0; s < index_.stages(); ++s) {
      for (int mb = 0; mb < index_.micro_batches() && !findings_.full(); ++mb) {
        check_forward(StageId{s}, MicroBatch{mb});
        check_backward(StageId{s}, MicroBatch{mb});
        check_sources(StageId{s}, MicroBatch{mb});
      }
    }
  }

 private:
  void missing(const char* what, StageId stage, MicroBatch mb) {
    add(fmt::format("rank {}: no {} of micro-batch {} on stage {}; expected one",
                    index_.rank_of(stage, mb).value, what, mb.value, stage.value));
  }

  void check_forward(StageId stage, MicroBatch mb) {
    const ActionPlace forward = index_.work(stage, mb).forward;
    if (!forward.found()) return missing("forward", stage, mb);
    if (index_.program().loads(stage)) {
      needs(forward, index_.load(stage, mb), "the load of its data");
    }
    if (stage.value > 0) {
      const StageId previous{stage.value - 1};
      check_input(forward, Tag::activation(previous, mb), index_.work(previous, mb).forward);
    }
    for (const auto& [from, to] : index_.program().skips) {
      if (to == stage) check_input(forward, Tag::activation(from, to, mb), index_.work(from, mb).forward);
    }
  }

  void check_backward(StageId stage, MicroBatch mb) {
    const MicroBatchPlaces& work = index_.work(stage, mb);
    if (!index_.trains(stage)) {
      if (work.recompute.found())
        add(index_.name(work.recompute) + ": validation keeps nothing to recompute");
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
    if (!index_.is_last(stage)) {
      const StageId next{stage.value + 1};
      check_input(work.input_part, Tag::gradient(next, mb), index_.work(next, mb).input_part);
    }
    for (const auto& [from, to] : index_.program().skips) {
      if (from == stage) {
        check_input(work.input_part, Tag::gradient(to, from, mb), index_.work(to, mb).input_part);
      }
    }
  }

  /// What `here` reads was made by `producer` on this rank, or received and waited for.
  void check_input(ActionPlace here, const Tag& tag, ActionPlace producer) {
    const bool handed_over = index_.hand_off(tag.from, tag.to, tag.micro_batch());
    const ActionPlace source = handed_over ? producer : index_.transfer(tag).wait;
    if (source.before(here)) return;
    needs(here, source,
          handed_over ? fmt::format("the {} that stage {} hands over on this rank", enum_name(tag.payload),
                                    tag.from.value)
                      : "the wait for " + describe_tag(tag));
  }

  /// What `stage` sends of `mb` must have been made.
  void check_sources(StageId stage, MicroBatch mb) {
    const MicroBatchPlaces& work = index_.work(stage, mb);
    const auto check = [&](const Tag& tag) {
      const ActionPlace start = index_.transfer(tag).start;
      if (!start.found()) return;
      if (tag.payload == Payload::activation) {
        needs(start, work.forward, "the forward that makes it");
      } else {
        needs(start, work.input_part, "the backward that makes it");
      }
    };
    check(Tag::activation(stage, mb));
    check(Tag::gradient(stage, mb));
    for (const auto& [from, to] : index_.program().skips) {
      if (from == stage) check(Tag::activation(from, to, mb));
      if (to == stage) check(Tag::gradient(to, from, mb));
    }
  }
};

}  // namespace

void ProofOf::needs(ActionPlace here, ActionPlace what, std::string_view wanted) {
  if (what.before(here)) return;
  add(fmt::format("{}: needs {}, which {}", index_.name(here), wanted,
                  what.found() ? "comes only later: " + index_.name(what) : "is nowhere"));
}

void prove_completeness(const ProgramIndex& index, Findings& findings) {
  Completeness(index, findings).run();
}

}  // namespace stagecraft::checker
