#include "test/schedules/interpreter.h"

#include "test/schedules/interpreter_layout.h"
#include "test/schedules/interpreter_wires.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

namespace stagecraft::test {
namespace {

template <class... Parts>
Symbol made_of(Parts... parts) {
  Symbol h = 0x51ED270B9D3A7C15ULL;
  for (const auto part : {static_cast<Symbol>(parts)...}) {
    h = (h ^ part) * 0x9E3779B97F4A7C15ULL;
    h ^= h >> 29U;
  }
  return h;
}

enum Made : Symbol {
  data,
  activation,
  activation_gradient,
  weight_gradient,
  weights,
  statistics,
  loss,
  norm,
  nothing
};

using Work = std::pair<int, int>;  ///< stage, micro-batch

struct SlotState {
  enum { free, pending, full } state = free;
  std::optional<Symbol> content;  ///< none: poison
  Tag tag;                        ///< while pending or full
};

/// What a forward keeps for its backward.
struct Kept {
  Symbol input = 0, output = 0, weights = 0;
  Symbol all_inputs = 0;    ///< with what skips bring
  std::optional<int> slot;  ///< where the input lies
  Symbol gradient = 0;      ///< of the output, between the two halves of a split backward
  Symbol from_next = 0;     ///< of that the part that comes from the next stage
  bool input_done = false;
};

struct Accumulation {
  Symbol sum = nothing;
  bool open = false;
  int group = -1;
};

struct StageState {
  std::vector<Symbol> versions;
  Symbol statistics = nothing;
  Accumulation accumulation;
};

struct RankState {
  std::size_t next = 0;
  std::vector<SlotState> slots;
  std::map<int, StageState> stages;
  std::set<Work> loaded, ever_loaded;
  std::map<Work, Kept> kept;
  std::map<Work, Symbol> outputs, input_gradients;
  std::map<int, Symbol> losses, norms;  ///< by group
  std::map<int, Symbol> reported;
  std::set<Tag> sending;
};

class Interpreter {
 public:
  Interpreter(const LoweredProgram& program, unsigned seed, const TransportRules& rules,
              const CostTable* costs)
      : program_(program), layout_(program), wires_(layout_, rules, costs), random_(seed) {}

  Outcome run() {
    try {
      start();
      while (step_somewhere()) {
      }
      finish();
    } catch (const Wrong& wrong) {
      outcome_ = {};
      outcome_.wrong = wrong.what();
    }
    return outcome_;
  }

 private:
  // --- running ------------------------------------------------------------------------------------------
  void start() {
    require(program_.ranks.size() == program_.slots.size(), "lists and slot tables differ in number");
    ranks_.resize(program_.ranks.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].slots.resize(program_.slots[r].size());
    for (int s = 0; s < layout_.stages(); ++s) {
      for (const Rank rank : program_.placement.ranks[static_cast<std::size_t>(s)]) {
        ranks_.at(rank.index()).stages[s].versions = {made_of(weights, s)};
      }
    }
  }

  /// One action of a random rank that can go on; false when none can.
  bool step_somewhere() {
    std::vector<int> order(ranks_.size());
    for (std::size_t r = 0; r < order.size(); ++r) order[r] = static_cast<int>(r);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int rank : order) {
      if (random_() % 2 == 0) {
        if (const auto now = wires_.any_arrival(random_)) write(*now);
      }
      RankState& mine = ranks_[static_cast<std::size_t>(rank)];
      const auto& list = program_.ranks[static_cast<std::size_t>(rank)];
      if (mine.next == list.size() || !carry_out(rank, list[mine.next])) continue;
      ++mine.next;
      return true;
    }
    return false;
  }

  void finish() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      require(ranks_[r].next == program_.ranks[r].size(), "deadlock");
      for (const SlotState& slot : ranks_[r].slots)
        require(slot.state == SlotState::free, "a slot is never released");
      require(ranks_[r].sending.empty(), "a send is never waited for");
      require(ranks_[r].kept.empty(), "a forward without a backward");
      for (const auto& [stage, state] : ranks_[r].stages) {
        require(!state.accumulation.open, "a gradient that enters no step");
        outcome_.weights[{stage, static_cast<int>(r)}] =
            made_of(state.versions.back(), state.versions.size());
        outcome_.statistics[{stage, static_cast<int>(r)}] = state.statistics;
      }
    }
    wires_.require_empty();
  }

  /// False: the action has to wait.
  bool carry_out(int rank, const Action& a) {
    RankState& mine = ranks_[static_cast<std::size_t>(rank)];
    switch (a.op) {
      case Op::load:
        load(mine, a);
        return true;
      case Op::forward:
        forward(rank, mine, a);
        return true;
      case Op::recompute:
        recompute(rank, mine, a);
        return true;
      case Op::backward_input:
        backward_input(rank, mine, a);
        return true;
      case Op::backward_weight:
        backward_weight(mine, a);
        return true;
      case Op::backward:
        backward_input(rank, mine, a);
        backward_weight(mine, a);
        return true;
      case Op::reduce:
        return reduce(rank, a);
      case Op::tie:
        throw Wrong("programs with tied weights are not interpreted");
      case Op::agree_norm:
        return agree(rank, a);
      case Op::step:
        step(mine, a);
        return true;
      case Op::report_loss:
        report(rank, mine, a);
        return true;
      case Op::post_receive:
        post(rank, mine, a);
        return true;
      case Op::wait_receive:
        return wait_receive(rank, mine, a);
      case Op::start_send:
        return start_send(rank, mine, a);
      case Op::wait_send:
        return wait_send(mine, a);
      case Op::release:
        release(mine, a);
        return true;
    }
    throw Wrong("no such action");
  }

  // --- compute ------------------------------------------------------------------------------------------
  StageState& stage(RankState& mine, StageId id) {
    const auto found = mine.stages.find(id.value);
    require(found != mine.stages.end(), "the rank does not hold the stage");
    return found->second;
  }

  void load(RankState& mine, const Action& a) {
    require(a.stage.value == 0 || layout_.last(a.stage.value), "no data for this stage");
    stage(mine, a.stage);
    layout_.require_work(a.stage.value, a.micro_batch.value);
    const Work work{a.stage.value, a.micro_batch.value};
    require(mine.ever_loaded.insert(work).second, "the data was already taken");
    mine.loaded.insert(work);
  }

  Symbol weights_of(RankState& mine, const Action& a) {
    const auto& versions = stage(mine, a.stage).versions;
    require(a.version.value >= 0 && a.version.index() < versions.size(), "a version that does not exist yet");
    return versions[a.version.index()];
  }

  SlotState& slot(RankState& mine, Slot id) {
    require(id.valid() && id.index() < mine.slots.size(), "no such slot");
    return mine.slots[id.index()];
  }

  Symbol read(RankState& mine, Slot id) {
    const SlotState& s = slot(mine, id);
    require(s.state == SlotState::full && s.content.has_value(), "poison is read");
    return *s.content;
  }

  Symbol input_of(int rank, RankState& mine, const Action& a) {
    const int s = a.stage.value;
    const int mb = a.micro_batch.value;
    if (s == 0) return made_of(data, mb);
    if (layout_.owner(s - 1, mb) != layout_.owner(s, mb)) return read(mine, a.slot);
    require(mine.outputs.contains({s - 1, mb}), "the previous stage's forward is not done");
    static_cast<void>(rank);
    return mine.outputs[{s - 1, mb}];
  }

  /// `from_neighbour`, and what comes to the action's stage from others than its neighbours.
  Symbol with_skips(RankState& mine, const Action& a, Payload payload, Symbol from_neighbour) {
    const bool forward = payload == Payload::activation;
    Symbol all = from_neighbour;
    for (const Skip& skip : program_.skips) {
      if ((forward ? skip.to : skip.from) != a.stage) continue;
      const Tag tag{payload, forward ? skip.from : skip.to, a.stage, a.micro_batch.value};
      if (layout_.owner(tag.from.value, tag.number) == layout_.owner(tag.to.value, tag.number)) {
        all = made_of(all, sent_tensor(mine, tag));
        continue;
      }
      const auto found = std::find_if(mine.slots.begin(), mine.slots.end(), [&](const SlotState& s) {
        return s.state == SlotState::full && s.content && s.tag == tag;
      });
      require(found != mine.slots.end(), "what a skip brings is not there");
      all = made_of(all, *found->content);
    }
    return all;
  }

  Symbol output_of(const Action& a, Symbol input, Symbol read_weights) const {
    return made_of(activation, a.stage.value, a.micro_batch.value, input, read_weights);
  }

  [[nodiscard]] bool frozen(StageId stage) const { return stage.value < program_.gradient_from.value; }

  void forward(int rank, RankState& mine, const Action& a) {
    StageState& state = stage(mine, a.stage);
    const int mb = a.micro_batch.value;
    layout_.require_work(a.stage.value, mb);
    const Work work{a.stage.value, mb};
    if (a.stage.value == 0 || layout_.last(a.stage.value))
      require(mine.loaded.erase(work) == 1, "data not loaded");
    Kept kept;
    kept.input = input_of(rank, mine, a);
    kept.weights = weights_of(mine, a);
    kept.all_inputs = with_skips(mine, a, Payload::activation, kept.input);
    kept.output = output_of(a, kept.all_inputs, kept.weights);
    if (a.slot.valid()) kept.slot = a.slot.value;
    require(!mine.outputs.contains(work), "a second forward");
    mine.outputs[work] = kept.output;
    if (layout_.last(a.stage.value)) {
      Symbol& sum = mine.losses.try_emplace(layout_.group_of(mb), nothing).first->second;
      sum = made_of(sum, loss, kept.output);
    }
    if (program_.kind == SegmentKind::validate) return;
    state.statistics = made_of(state.statistics, kept.input);
    if (frozen(a.stage)) return;
    mine.kept[work] = kept;
  }

  Kept& kept_of(RankState& mine, const Action& a) {
    const auto found = mine.kept.find({a.stage.value, a.micro_batch.value});
    require(found != mine.kept.end(), "nothing is kept for it");
    return found->second;
  }

  /// The kept input must still be there, and the weights the same.
  void check_kept(RankState& mine, const Action& a, const Kept& kept) {
    require(weights_of(mine, a) == kept.weights, "other weights than the forward's");
    if (kept.slot) require(read(mine, Slot{*kept.slot}) == kept.input, "the kept input is gone");
    require(with_skips(mine, a, Payload::activation, kept.input) == kept.all_inputs,
            "a kept skip is another's");
  }

  void recompute(int rank, RankState& mine, const Action& a) {
    Kept& kept = kept_of(mine, a);
    check_kept(mine, a, kept);
    require(!kept.input_done, "recomputed too late");
    const Symbol inputs = with_skips(mine, a, Payload::activation, input_of(rank, mine, a));
    require(output_of(a, inputs, weights_of(mine, a)) == kept.output, "recomputed something else");
  }

  void backward_input(int rank, RankState& mine, const Action& a) {
    static_cast<void>(rank);
    require(!frozen(a.stage), "a backward of frozen weights");
    Kept& kept = kept_of(mine, a);
    require(!kept.input_done, "a second input gradient");
    check_kept(mine, a, kept);
    const int s = a.stage.value;
    const int mb = a.micro_batch.value;
    kept.gradient = made_of(loss, mb);
    if (!layout_.last(s) && layout_.owner(s + 1, mb) != layout_.owner(s, mb))
      kept.gradient = read(mine, a.slot);
    if (!layout_.last(s) && layout_.owner(s + 1, mb) == layout_.owner(s, mb)) {
      require(mine.input_gradients.contains({s + 1, mb}), "the next stage's backward is not done");
      kept.gradient = mine.input_gradients[{s + 1, mb}];
    }
    kept.from_next = kept.gradient;
    kept.gradient = with_skips(mine, a, Payload::gradient, kept.from_next);
    kept.input_done = true;
    if (s == program_.gradient_from.value) return;  // nobody has a use for it
    mine.input_gradients[{s, mb}] = made_of(activation_gradient, s, kept.output, kept.gradient);
  }

  void backward_weight(RankState& mine, const Action& a) {
    Kept& kept = kept_of(mine, a);
    require(kept.input_done, "weight gradient before input gradient");
    check_kept(mine, a, kept);
    const int s = a.stage.value;
    const int mb = a.micro_batch.value;
    if (!layout_.last(s) && layout_.owner(s + 1, mb) != layout_.owner(s, mb)) {
      require(read(mine, a.slot) == kept.from_next, "the output's gradient is gone");
    }
    require(with_skips(mine, a, Payload::gradient, kept.from_next) == kept.gradient,
            "a skip's gradient is gone");
    Accumulation& sum = stage(mine, a.stage).accumulation;
    require(!sum.open || sum.group == a.group.value, "two accumulations at once");
    sum = {made_of(sum.open ? sum.sum : Symbol{nothing}, weight_gradient, kept.output, kept.gradient), true,
           a.group.value};
    mine.kept.erase({s, mb});
  }

  // --- collectives and updates --------------------------------------------------------------------------
  /// Whether all of `members` stand at a collective of this kind; those of another group or stage are wrong.
  bool all_at(const std::vector<int>& members, const Action& a) const {
    for (const int member : members) {
      const auto& list = program_.ranks[static_cast<std::size_t>(member)];
      const std::size_t next = ranks_[static_cast<std::size_t>(member)].next;
      if (next == list.size() || list[next].op != a.op || list[next].stage != a.stage) return false;
      require(list[next].group == a.group, "a collective of two different groups");
    }
    return true;
  }

  bool reduce(int rank, const Action& a) {
    stage(ranks_[static_cast<std::size_t>(rank)], a.stage);
    std::vector<int> members;
    for (const Rank r : program_.placement.ranks[a.stage.index()]) members.push_back(r.value);
    if (!all_at(members, a)) return false;
    Symbol sum = nothing;
    for (const int member : members) {
      const Accumulation& part = ranks_[static_cast<std::size_t>(member)].stages[a.stage.value].accumulation;
      require(!part.open || part.group == a.group.value, "the gradients of another group are reduced");
      sum = made_of(sum, part.open ? part.sum : Symbol{nothing});
    }
    if (frozen(a.stage)) {  // of its statistics alone
      for (int mb = 0; mb < layout_.micro_batches(); ++mb) {
        const int owner = layout_.owner(a.stage.value, mb);
        require(layout_.group_of(mb) != a.group.value ||
                    ranks_[static_cast<std::size_t>(owner)].outputs.contains({a.stage.value, mb}),
                "statistics are reduced before a forward of their group");
      }
      return advance_others(members, rank);
    }
    for (const int member : members) {
      ranks_[static_cast<std::size_t>(member)].stages[a.stage.value].accumulation = {sum, true,
                                                                                     a.group.value};
    }
    return advance_others(members, rank);
  }

  bool agree(int rank, const Action& a) {
    std::vector<int> members;
    for (std::size_t r = 0; r < ranks_.size(); ++r) members.push_back(static_cast<int>(r));
    if (!all_at(members, a)) return false;
    Symbol value = norm;
    for (const RankState& state : ranks_) {
      for (const auto& [id, held] : state.stages) value = made_of(value, id, held.accumulation.sum);
    }
    for (RankState& state : ranks_) {
      require(state.norms.emplace(a.group.value, value).second, "a second agreement");
    }
    return advance_others(members, rank);
  }

  bool advance_others(const std::vector<int>& members, int rank) {
    for (const int member : members) {
      if (member != rank) ++ranks_[static_cast<std::size_t>(member)].next;
    }
    return true;
  }

  void step(RankState& mine, const Action& a) {
    require(!frozen(a.stage), "a step of frozen weights");
    StageState& state = stage(mine, a.stage);
    require(a.version.value + 1 == static_cast<int>(state.versions.size()),
            "a step from a version that is not the newest");
    require(!state.accumulation.open || state.accumulation.group == a.group.value,
            "the gradients of another group");
    const auto agreed = mine.norms.find(a.group.value);
    state.versions.push_back(made_of(weights, state.versions.back(),
                                     state.accumulation.open ? state.accumulation.sum : Symbol{nothing},
                                     agreed == mine.norms.end() ? Symbol{nothing} : agreed->second));
    state.accumulation = {};
  }

  void report(int rank, RankState& mine, const Action& a) {
    stage(mine, a.stage);
    const int g = a.group.value;
    require(g >= 0 && g < static_cast<int>(program_.group_sizes.size()), "no such group");
    const int printer = program_.placement.ranks[0][0].value;
    if (rank != printer) {
      require(layout_.last(a.stage.value) && mine.losses.contains(g), "nothing to report");
      require(mine.reported.emplace(g, mine.losses[g]).second, "a second report");
      return;
    }
    require(a.stage.value == 0, "the printing rank reports as stage 0");
    const auto versions = mine.stages[0].versions.size();
    require(program_.kind == SegmentKind::validate || frozen(a.stage) ||
                versions > static_cast<std::size_t>(g) + 1,
            "a step is reported that was not made");
    Symbol all = nothing;
    const auto& replicas = program_.placement.ranks.back();
    for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
      if (!layout_.takes_part(replica, replicas.size(), g)) continue;
      if (replicas[replica].value == printer) {
        require(mine.losses.contains(g), "no loss yet");
        all = made_of(all, mine.losses[g]);
        continue;
      }
      const Tag wanted{Payload::loss, StageId{layout_.stages() - 1}, StageId{0}, g,
                       static_cast<std::int32_t>(replica)};
      const auto found = std::find_if(mine.slots.begin(), mine.slots.end(), [&](const SlotState& s) {
        return s.state == SlotState::full && s.content && s.tag == wanted;
      });
      require(found != mine.slots.end(), "a loss has not arrived");
      all = made_of(all, *found->content);
    }
    require(outcome_.reports.emplace(g, all).second, "a second report");
  }

  // --- transfers ----------------------------------------------------------------------------------------
  void post(int rank, RankState& mine, const Action& a) {
    SlotState& s = slot(mine, a.slot);
    const SlotInfo& info = program_.slots[static_cast<std::size_t>(rank)][a.slot.index()];
    require(info == SlotInfo{a.tag.payload, a.tag.from, a.tag.to, a.tag.index}, "a slot of another boundary");
    require(s.state == SlotState::free, "a receive into a slot that is in use");
    wires_.post(rank, a.slot, a.tag);
    s = {SlotState::pending, std::nullopt, a.tag};
  }

  Symbol sent_tensor(RankState& mine, const Tag& t) {
    const Work work{t.from.value, t.number};
    const auto& from = t.payload == Payload::activation ? mine.outputs : mine.input_gradients;
    if (t.payload == Payload::loss) {
      require(mine.reported.contains(t.group().value), "a loss that was not reported");
      return mine.reported[t.group().value];
    }
    require(from.contains(work), "a tensor that was not made");
    if (t.to.value == t.from.value + (t.payload == Payload::activation ? 1 : -1)) return from.at(work);
    const Skip ends = t.payload == Payload::activation ? Skip{t.from, t.to} : Skip{t.to, t.from};
    require(std::find(program_.skips.begin(), program_.skips.end(), ends) != program_.skips.end(),
            "not a boundary");
    return made_of(from.at(work), t.to.value);
  }

  bool start_send(int rank, RankState& mine, const Action& a) {
    if (!wires_.start_send(rank, a.tag, sent_tensor(mine, a.tag))) return false;
    const bool first = mine.sending.insert(a.tag).second;
    require(first || !wires_.launches(), "a second send before the first is over");
    return true;
  }

  bool wait_send(RankState& mine, const Action& a) {
    require(mine.sending.contains(a.tag), "wait for a send that was not started");
    if (!wires_.send_over(a.tag)) return false;
    mine.sending.erase(a.tag);
    return true;
  }

  void write(const Arrival& now) {
    SlotState& s = ranks_[static_cast<std::size_t>(now.where.rank)].slots[now.where.slot.index()];
    require(s.state == SlotState::pending && !s.content && (!wires_.tags() || s.tag == now.tag),
            "a slot is written while it is in use");
    s.content = now.content;
  }

  bool wait_receive(int rank, RankState& mine, const Action& a) {
    SlotState& s = slot(mine, a.slot);
    require(s.state == SlotState::pending && s.tag == a.tag, "wait for what was not posted");
    if (!s.content) {
      if (const auto now = wires_.arrival_at(rank, a.slot)) write(*now);
    }
    if (!s.content) return false;
    s.state = SlotState::full;
    return true;
  }

  void release(RankState& mine, const Action& a) {
    SlotState& s = slot(mine, a.slot);
    require(s.state == SlotState::full, "release of a slot that holds nothing");
    s = {};
  }

  const LoweredProgram& program_;
  const Layout layout_;
  Wires wires_;
  std::mt19937 random_;
  std::vector<RankState> ranks_;
  Outcome outcome_;
};

}  // namespace

Outcome interpret(const LoweredProgram& program, unsigned seed, const TransportRules& rules,
                  const CostTable* costs) {
  return Interpreter(program, seed, rules, costs).run();
}

}  // namespace stagecraft::test
