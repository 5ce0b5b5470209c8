#include "schedules/simulator/instructions.h"

#include "schedules/base/error.h"
#include "schedules/dependencies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
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

Part part_of(Op op) {
  switch (op) {
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

Account account_of(Op op) {
  if (op == Op::step) return step;
  return part_of(op) == forward_part ? forward : backward;
}

class Flattener {
 public:
  explicit Flattener(const LoweredProgram& program) : program_(program), graph_(program) {
    if (!graph_.problems().empty())
      throw RefusedError("the program's transfers and collectives do not meet: " + graph_.problems().front());
    if (!graph_.acyclic()) {
      throw RefusedError(
          fmt::format("the program deadlocks:\n  {}", fmt::join(graph_.describe_cycle(program), "\n  ")));
    }
    transfers_.resize(static_cast<std::size_t>(graph_.size()), -1);
    collective_of_.resize(static_cast<std::size_t>(graph_.collectives()), -1);
    find_joins();
    seats_of_.resize(program.ranks.size());
    routes_of_.resize(program.ranks.size());
  }

  Instructions run() {
    out_.order.reserve(graph_.order().size());
    for (const std::int32_t node : graph_.order()) add(node);
    out_.lanes = lanes_.size();
    return std::move(out_);
  }

 private:
  void add(std::int32_t node) {
    const Dependencies::Place at = place(node);
    const Rank rank = at.rank;
    const Action& action = program_.ranks[rank.index()][static_cast<std::size_t>(at.index)];
    switch (action.op) {
      case Op::forward:
      case Op::recompute:
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
      case Op::step:
        emit(Instruction::Kind::compute, account_of(action.op), at,
             price(rank, action.stage, part_of(action.op)));
        if (const auto join = joins_.find(node); join != joins_.end()) {
          emit(Instruction::Kind::join, wait_other, at, collective(join->second));
        }
        break;
      case Op::post_receive:
        emit(Instruction::Kind::post, wait_other, at, transfer(graph_.peer(node), rank, action.tag));
        break;
      case Op::start_send:
        // Its post_receive stands before it in the order, so the transfer has its number.
        emit(Instruction::Kind::send, wait_other, at, transfers_[static_cast<std::size_t>(node)]);
        break;
      case Op::wait_receive:
      case Op::wait_send:
        emit(Instruction::Kind::wait, wait_account(action), at,
             transfers_[static_cast<std::size_t>(graph_.peer(node))]);
        break;
      case Op::agree_norm:
        meet(graph_.peer(node), at);
        break;
      case Op::reduce:
        finish(graph_.peer(node), node);
        break;
      case Op::load:
      case Op::report_loss:
      case Op::release:
        break;
    }
  }

  /// The order stays on one rank for a while, so the rank is rarely looked for.
  Dependencies::Place place(std::int32_t node) {
    if (node < graph_.first_of(here_) || node >= graph_.end_of(here_)) here_ = graph_.place(node).rank;
    return {here_, node - graph_.first_of(here_)};
  }

  void emit(Instruction::Kind kind, Account account, Dependencies::Place at, std::int32_t operand) {
    out_.order.push_back({kind, account, at.rank.value, operand, at.index});
  }

  std::int32_t price(Rank rank, StageId stage, Part part) {
    auto& seats = seats_of_[rank.index()];  // one a stage it holds
    auto found = std::find_if(seats.begin(), seats.end(), [&](std::int32_t seat) {
      return out_.seats[static_cast<std::size_t>(seat)].stage == stage;
    });
    if (found == seats.end()) {
      found = seats.insert(found, static_cast<std::int32_t>(out_.seats.size()));
      out_.seats.push_back(Seat{rank, stage});
    }
    return *found * part_count + part;
  }

  /// Numbers the transfer that `start` sends.
  std::int32_t transfer(std::int32_t start, Rank receiver, const Tag& tag) {
    const auto id = static_cast<std::int32_t>(out_.transfer_route.size());
    transfers_[static_cast<std::size_t>(start)] = id;
    out_.transfer_route.push_back(route(graph_.place(start).rank, receiver, tag));
    return id;
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
        const Dependencies::Place at = graph_.place(node);
        const auto& list = program_.ranks[at.rank.index()];
        const Action& reduce = list[static_cast<std::size_t>(at.index)];
        if (reduce.op != Op::reduce) break;
        for (std::int32_t i = at.index - 1; i >= 0; --i) {
          const Action& action = list[static_cast<std::size_t>(i)];
          if (action.stage != reduce.stage) continue;
          if (action.op == Op::step || action.op == Op::reduce) break;  // of a group before
          if (action.group != reduce.group) continue;
          if (action.op != Op::backward && action.op != Op::backward_weight) continue;
          joins_.emplace(graph_.node(at.rank, i), number);
          fed_.insert(node);
          break;
        }
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
      const Dependencies::Place at = graph_.place(member);
      const Action& action = program_.ranks[at.rank.index()][static_cast<std::size_t>(at.index)];
      made.op = action.op;
      if (action.op == Op::reduce) made.stage = action.stage;
      made.members.push_back(at.rank);
      made.places.push_back(at.index);
    }
    return index;
  }

  /// One instruction for all members. By the graph's edges all that stands before the collective on any of
  /// them has been passed when the first one is.
  void meet(std::int32_t number, Dependencies::Place at) {
    if (collective_of_[static_cast<std::size_t>(number)] >= 0) return;
    emit(Instruction::Kind::collective, wait_other, at, collective(number));
  }

  /// All members' at once: whoever has nothing to add joins here, and before anybody waits.
  void finish(std::int32_t number, std::int32_t node) {
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
  Instructions out_;
  std::vector<std::int32_t> transfers_;      // per node: of a start_send the number of its transfer
  std::vector<std::int32_t> collective_of_;  // per collective of the graph
  std::unordered_map<std::int32_t, std::int32_t> joins_;  // from a backward's node to the graph's collective
  std::unordered_set<std::int32_t> fed_;                  // reduce nodes that a backward joins
  Rank here_{0};                                          // the rank last looked for
  std::vector<std::vector<std::int32_t>> seats_of_;       // per rank
  std::vector<std::vector<std::int32_t>> routes_of_;      // per sender
  std::map<std::pair<Rank, Rank>, std::int32_t> lanes_;
};

}  // namespace

Instructions flatten(const LoweredProgram& program) { return Flattener(program).run(); }

}  // namespace stagecraft::simulator
