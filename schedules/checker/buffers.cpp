// Proof 5: buffers. Every slot goes free -> posted -> arrived -> free, over and over, for tensors of its own
// boundary, and is read only while what was asked for has arrived. An activation's slot is the kept input: it
// is read from the forward to the last part of the backward.

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

class RankBuffers {
 public:
  RankBuffers(const ProgramIndex& index, Rank rank, Findings& findings)
      : index_(index),
        findings_(findings),
        rank_(rank),
        infos_(index.program().slots[rank.index()]),
        slots_(infos_.size()) {}

  void run() {
    const auto& list = index_.program().ranks[rank_.index()];
    for (std::size_t i = 0; i < list.size() && !findings_.full(); ++i) {
      here_ = {rank_, static_cast<std::int32_t>(i)};
      visit(list[i]);
    }
    for (std::size_t s = 0; s < slots_.size() && !findings_.full(); ++s) {
      if (slots_[s].state == State::free) continue;
      findings_.add(Finding::Kind::buffers,
                    fmt::format("rank {}: slot {} still holds {} at the end; expected a release", rank_.value,
                                s, describe_tag(slots_[s].tag)));
    }
  }

 private:
  enum class State : std::uint8_t { free, posted, arrived };
  struct Content {
    State state = State::free;
    Tag tag;
  };

  void add(const std::string& what) {
    findings_.add(Finding::Kind::buffers, fmt::format("{}: {}", index_.name(here_), what));
  }

  [[nodiscard]] std::string content(Slot slot) const {
    const Content& held = slots_[slot.index()];
    if (held.state == State::free) return fmt::format("slot {} is free", slot.value);
    return fmt::format("slot {} {} {}", slot.value, held.state == State::posted ? "waits for" : "holds",
                       describe_tag(held.tag));
  }

  void visit(const Action& action) {
    switch (action.op) {
      case Op::post_receive:
        return post(action);
      case Op::wait_receive:
        return arrive(action);
      case Op::release:
        return release(action);
      case Op::forward:
      case Op::recompute:
        read_skips(action, Payload::activation);
        return read_activation(action, action.slot);
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
        return read_for_backward(action);
      case Op::report_loss:
        return read_losses(action);
      default:
        return;
    }
  }

  void post(const Action& action) {
    const Tag& tag = action.tag;
    const SlotInfo& info = infos_[action.slot.index()];
    if (info != SlotInfo{tag.payload, tag.from, tag.to, tag.index}) {
      add(fmt::format("slot {} is for the {} from stage {} to stage {} ({})", action.slot.value,
                      enum_name(info.payload), info.from.value, info.to.value, info.index));
    }
    Content& slot = slots_[action.slot.index()];
    if (slot.state != State::free) add(content(action.slot) + "; expected a free one");
    slot = {State::posted, tag};
  }

  void arrive(const Action& action) {
    Content& slot = slots_[action.slot.index()];
    if (slot.state != State::posted || slot.tag != action.tag) {
      add(fmt::format("{}; expected it to wait for {}", content(action.slot), describe_tag(action.tag)));
    }
    slot = {State::arrived, action.tag};
  }

  void release(const Action& action) {
    Content& slot = slots_[action.slot.index()];
    if (slot.state != State::arrived) add(content(action.slot) + "; expected one that was waited for");
    slot = {};
  }

  /// `named` is the slot on the action, `tag` what it must hold now.
  void read(Slot named, const Tag& tag) {
    const Content& slot = slots_[named.index()];
    if (slot.state != State::arrived || slot.tag != tag) {
      add(fmt::format("{}; expected it to hold {}", content(named), describe_tag(tag)));
    }
  }

  void no_slot(Slot named, const char* why) {
    if (named.valid()) add(fmt::format("names slot {}, but {}", named.value, why));
  }

  void read_boundary(Slot named, const Tag& tag, const char* handed_over) {
    if (index_.hand_off(tag.from, tag.to, tag.micro_batch())) return no_slot(named, handed_over);
    if (!named.valid()) return add(fmt::format("names no slot; expected the one of {}", describe_tag(tag)));
    read(named, tag);
  }

  void read_activation(const Action& action, Slot named) {
    if (action.stage.value == 0) return no_slot(named, "stage 0 reads loaded data");
    read_boundary(named, Tag::activation(StageId{action.stage.value - 1}, action.micro_batch),
                  "its input is handed over on this rank");
  }

  /// What comes to the action's stage from others than its neighbours lies in the slots posted for it.
  void read_skips(const Action& action, Payload payload) {
    const bool forward = payload == Payload::activation;
    for (const Skip& skip : index_.program().skips) {
      if ((forward ? skip.to : skip.from) != action.stage) continue;
      const Tag tag = forward ? Tag::activation(skip.from, skip.to, action.micro_batch)
                              : Tag::gradient(skip.to, skip.from, action.micro_batch);
      if (index_.hand_off(tag.from, tag.to, tag.micro_batch())) continue;
      const ActionPlace post = index_.transfer(tag).post;
      if (post.found()) read(index_.action(post).slot, tag);
    }
  }

  void read_for_backward(const Action& action) {
    read_skips(action, Payload::activation);
    read_skips(action, Payload::gradient);
    // The kept input: the slot its forward read.
    const ActionPlace forward = index_.work(action.stage, action.micro_batch).forward;
    if (forward.found() && index_.action(forward).slot.valid()) {
      read_activation(action, index_.action(forward).slot);
    }
    if (index_.is_last(action.stage)) return no_slot(action.slot, "the last stage reads the loss");
    read_boundary(action.slot, Tag::gradient(StageId{action.stage.value + 1}, action.micro_batch),
                  "its gradient is handed over on this rank");
  }

  /// The printing rank reads the losses of all the last stage's replicas, which lie in the slots posted for
  /// them.
  void read_losses(const Action& action) {
    const StageReplica printer = index_.holders().front();
    if (action.stage != printer.stage || rank_ != printer.rank) return;
    const StageId last{index_.stages() - 1};
    for (int replica = 0; replica < index_.program().placement.replicas(last); ++replica) {
      const Tag tag = Tag::loss(last, action.group, replica);
      const ActionPlace post = index_.transfer(tag).post;
      if (post.found()) read(index_.action(post).slot, tag);
    }
  }

  const ProgramIndex& index_;
  Findings& findings_;
  Rank rank_;
  const std::vector<SlotInfo>& infos_;
  std::vector<Content> slots_;
  ActionPlace here_;
};

}  // namespace

void prove_buffers(const ProgramIndex& index, Findings& findings) {
  for (int r = 0; r < index.world() && !findings.full(); ++r) RankBuffers(index, Rank{r}, findings).run();
}

}  // namespace stagecraft::checker
