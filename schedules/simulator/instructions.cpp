#include "schedules/simulator/instructions.h"

#include "base/error.h"
#include "schedules/program/placement.h"
#include "schedules/program/recompute.h"
#include "schedules/rules/dependencies.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

namespace stagecraft::simulator {
namespace {

Account wait_account(const Action& action) {
  if (action.op == Op::wait_send) return wait_send;
  switch (action.tag.payload) {
    case Payload::activation:
      return wait_activation;
    case Payload::gradient:
      return wait_gradient;
    case Payload::loss:
      break;
  }
  return wait_other;
}

Account account_of(Op op) {
  if (op == Op::step) return step;
  return op == Op::forward || op == Op::recompute ? forward : backward;
}

class Flattener {
 public:
  explicit Flattener(const LoweredProgram& program)
      : program_(program), graph_(program), group_ends_(group_ends(program.group_sizes)) {
    if (!graph_.problems().empty())
      throw RefusedError("the program's transfers and collectives do not meet: " + graph_.problems().front());
    if (!graph_.acyclic()) {
      throw RefusedError(
          fmt::format("the program deadlocks:\n  {}", fmt::join(graph_.describe_cycle(program), "\n  ")));
    }
    collective_of_.resize(static_cast<std::size_t>(graph_.collectives()), -1);
    find_joins();
    routes_of_.resize(program.ranks.size());
  }

  Instructions run() {
    // Each rank's actions are looked up in their own order, so that putting all into theirs moves little.
    drafts_.reserve(static_cast<std::size_t>(graph_.size()));
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) draft(Rank{r});
    out_.order.reserve(instructions_);
    for (const std::int32_t node : graph_.order()) add(node);
    out_.lanes = lanes_.size();
    return std::move(out_);
  }

 private:
  struct Draft {
    enum class Kind : std::uint8_t { nothing, compute, post, send, wait, meet, finish };
    Kind kind = Kind::nothing;
    Account account = wait_other;
    /// compute: price; post: route; send: transfer, from when its receive is posted.
    std::int32_t operand = -1;
  };

  void draft(Rank rank) {
    stage_replicas_.clear();
    std::int32_t node = graph_.first_of(rank);
    for (const Action& action : program_.ranks[rank.index()]) {
      drafts_.push_back(draft_of(rank, action, node++));
      if (drafts_.back().kind != Draft::Kind::nothing) ++instructions_;
    }
  }

  Draft draft_of(Rank rank, const Action& action, std::int32_t node) {
    using enum Draft::Kind;
    switch (action.op) {
      case Op::forward:
      case Op::recompute:
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
      case Op::step:
        return {compute, account_of(action.op), price(rank, action.stage, part_of(action))};
      case Op::post_receive:
        return {post, wait_other, route(sender_of(node), rank, action.tag)};
      case Op::start_send:
        return {send, wait_other};
      case Op::wait_receive:
      case Op::wait_send:
        return {wait, wait_account(action)};
      case Op::agree_norm:
        return {meet};
      case Op::reduce:
      case Op::tie:
        return {finish};
      case Op::load:
      case Op::report_loss:
      case Op::release:
        break;
    }
    return {};
  }

  void add(std::int32_t node) {
    const Draft draft = drafts_[static_cast<std::size_t>(node)];
    if (draft.kind == Draft::Kind::nothing) return;
    const ActionPlace at = place(node);
    switch (draft.kind) {
      case Draft::Kind::compute:
        emit(Instruction::Kind::compute, draft.account, at, draft.operand);
        for (auto [join, end] = joins_.equal_range(node); join != end; ++join)
          emit(Instruction::Kind::join, wait_other, at, collective(join->second));
        break;
      case Draft::Kind::post: {
        const auto transfer = static_cast<std::int32_t>(out_.transfer_route.size());
        out_.transfer_route.push_back(draft.operand);
        transfer_of(graph_.peer(node)) = transfer;
        emit(Instruction::Kind::post, wait_other, at, transfer);
        break;
      }
      case Draft::Kind::send:
        // Its post_receive stands before it in the order, so the transfer has its number.
        emit(Instruction::Kind::send, wait_other, at, draft.operand);
        break;
      case Draft::Kind::wait:
        emit(Instruction::Kind::wait, draft.account, at, transfer_of(graph_.peer(node)));
        break;
      case Draft::Kind::meet:
        meet_all(graph_.peer(node), at);
        break;
      case Draft::Kind::finish:
        finish_all(graph_.peer(node), node);
        break;
      case Draft::Kind::nothing:
        break;
    }
  }

  /// The number of the transfer that a start_send sends.
  std::int32_t& transfer_of(std::int32_t start) { return drafts_[static_cast<std::size_t>(start)].operand; }

  /// The order stays on one rank for a while, so the rank is rarely looked for.
  ActionPlace place(std::int32_t node) {
    if (node < graph_.first_of(here_) || node >= graph_.end_of(here_)) here_ = graph_.place(node).rank;
    return {here_, node - graph_.first_of(here_)};
  }

  Rank sender_of(std::int32_t post) { return graph_.place(graph_.peer(post)).rank; }

  void emit(Instruction::Kind kind, Account account, ActionPlace at, std::int32_t operand) {
    out_.order.push_back({kind, account, at.rank.value, operand, at.at});
  }

  [[nodiscard]] Part part_of(const Action& action) const {
    switch (action.op) {
      case Op::recompute:
        return recomputes(Recompute::all_but_last, action.micro_batch,
                          program_.placement.replicas(action.stage), group_ends_[action.group.index()])
                   ? recompute_part
                   : last_recompute_part;
      case Op::backward:
        return backward_part;
      case Op::backward_input:
        return input_part;
      case Op::backward_weight:
        return weight_part;
      case Op::step:
        return step_part;
      default:
        return forward_part;
    }
  }

  /// The place of a price, with what the rank drafted now has priced before.
  std::int32_t price(Rank rank, StageId stage, Part part) {
    auto found =
        std::find_if(stage_replicas_.begin(), stage_replicas_.end(), [&](std::int32_t stage_replica) {
          return out_.stage_replicas[static_cast<std::size_t>(stage_replica)].stage == stage;
        });
    if (found == stage_replicas_.end()) {
      found = stage_replicas_.insert(found, static_cast<std::int32_t>(out_.stage_replicas.size()));
      out_.stage_replicas.push_back({.stage = stage, .rank = rank});
    }
    return *found * part_count + part;
  }

  std::int32_t route(Rank sender, Rank receiver, const Tag& tag) {
    auto& routes = routes_of_[sender.index()];  // a few, to each of its neighbours
    for (const std::int32_t known : routes) {
      const Route& route = out_.routes[static_cast<std::size_t>(known)];
      if (route.receiver == receiver && route.payload == tag.payload && route.from == tag.from &&
          route.to == tag.to)
        return known;
    }
    const auto lane =
        lanes_.try_emplace(std::pair(sender, receiver), static_cast<std::int32_t>(lanes_.size()));
    routes.push_back(static_cast<std::int32_t>(out_.routes.size()));
    out_.routes.push_back(Route{sender, receiver, tag.payload, tag.from, tag.to, lane.first->second});
    return routes.back();
  }

  /// A rank joins a reduction right behind the last backward that feeds it.
  void find_joins() {
    for (std::int32_t number = 0; number < graph_.collectives(); ++number) {
      for (const std::int32_t node : graph_.members(number)) {
        const ActionPlace at = graph_.place(node);
        const auto& list = program_.ranks[at.rank.index()];
        if (program_.action(at).op == Op::agree_norm) break;
        const std::int32_t join = last_backward_into(program_, list, at.at);
        if (join < 0) continue;
        joins_.emplace(graph_.node(at.rank, join), number);
        fed_.insert(node);
      }
    }
  }

  /// Its place among the instructions' collectives.
  std::int32_t collective(std::int32_t number) {
    std::int32_t& index = collective_of_[static_cast<std::size_t>(number)];
    if (index >= 0) return index;
    index = static_cast<std::int32_t>(out_.collectives.size());
    Collective& made = out_.collectives.emplace_back();
    for (const std::int32_t member : graph_.members(number)) {
      const ActionPlace at = graph_.place(member);
      const Action& action = program_.action(at);
      made.op = action.op;
      if (action.op == Op::reduce) made.stage = action.stage;
      if (action.op == Op::tie) {
        made.tie = action.tie;
        made.holders = program_.ties[action.tie.index()];
      }
      made.members.push_back(at.rank);
      made.places.push_back(at.at);
    }
    return index;
  }

  /// One instruction for all members. By the graph's edges all that stands before the collective on any of
  /// them has been passed when the first one is.
  void meet_all(std::int32_t number, ActionPlace at) {
    if (collective_of_[static_cast<std::size_t>(number)] >= 0) return;
    emit(Instruction::Kind::collective, wait_other, at, collective(number));
  }

  /// All members' at once: whoever has nothing to add joins here, and before anybody waits.
  void finish_all(std::int32_t number, std::int32_t node) {
    const auto& members = graph_.members(number);
    if (node != members.front()) return;
    const std::int32_t index = collective(number);
    for (const std::int32_t member : members) {
      if (!fed_.contains(member)) {
        emit(Instruction::Kind::join, wait_other, graph_.place(member), index);
      }
    }
    for (const std::int32_t member : members) {
      emit(Instruction::Kind::finish, wait_other, graph_.place(member), index);
    }
  }

  const LoweredProgram& program_;
  const Dependencies graph_;
  std::vector<int> group_ends_;
  Instructions out_;
  std::vector<Draft> drafts_;                         // per node
  std::size_t instructions_ = 0;                      // about
  std::vector<std::int32_t> collective_of_;           // per collective of the graph
  std::multimap<std::int32_t, std::int32_t> joins_;   // from a backward's node to the graph's collectives
  std::unordered_set<std::int32_t> fed_;              // reduce and tie nodes that a backward joins
  Rank here_{0};                                      // the rank last looked for
  std::vector<std::int32_t> stage_replicas_;          // of the rank drafted now, one per stage it holds
  std::vector<std::vector<std::int32_t>> routes_of_;  // per sender
  std::map<std::pair<Rank, Rank>, std::int32_t> lanes_;
};

}  // namespace

Instructions flatten(const LoweredProgram& program) { return Flattener(program).run(); }

}  // namespace stagecraft::simulator
