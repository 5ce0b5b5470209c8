#include "schedules/simulator/instructions.h"

#include "schedules/base/error.h"
#include "schedules/dependencies.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
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
    met_.resize(static_cast<std::size_t>(graph_.collectives()), false);
  }

  Instructions run() {
    out_.order.reserve(graph_.order().size());
    for (const std::int32_t node : graph_.order()) add(node);
    out_.lanes = lanes_.size();
    return std::move(out_);
  }

 private:
  void add(std::int32_t node) {
    const Action& action = graph_.action(program_, node);
    const Rank rank = graph_.place(node).rank;
    switch (action.op) {
      case Op::forward:
      case Op::recompute:
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
      case Op::step:
        emit(Instruction::Kind::compute, account_of(action.op), node,
             price(rank, action.stage, part_of(action.op)));
        break;
      case Op::post_receive:
        emit(Instruction::Kind::post, wait_other, node, transfer(graph_.peer(node), rank));
        break;
      case Op::start_send:
        emit(Instruction::Kind::send, wait_other, node, transfer(node, graph_.place(graph_.peer(node)).rank));
        break;
      case Op::wait_receive:
      case Op::wait_send:
        // Its start_send stands before it in the order, so the transfer has its number.
        emit(Instruction::Kind::wait, wait_account(action), node,
             transfers_[static_cast<std::size_t>(graph_.peer(node))]);
        break;
      case Op::reduce:
      case Op::agree_norm:
        meet(node, action);
        break;
      case Op::load:
      case Op::report_loss:
      case Op::release:
        break;
    }
  }

  void emit(Instruction::Kind kind, Account account, std::int32_t node, std::int32_t operand) {
    const Dependencies::Place place = graph_.place(node);
    out_.order.push_back({kind, account, place.rank.value, operand, place.index});
  }

  std::int32_t price(Rank rank, StageId stage, Part part) {
    const auto [found, added] = seats_.try_emplace(std::pair(rank, stage), out_.seats.size());
    if (added) out_.seats.push_back(Seat{rank, stage});
    return static_cast<std::int32_t>(found->second * part_count + part);
  }

  /// The number of the transfer that `start` sends; numbered when its receive is posted, which comes first.
  std::int32_t transfer(std::int32_t start, Rank receiver) {
    std::int32_t& id = transfers_[static_cast<std::size_t>(start)];
    if (id < 0) {
      id = static_cast<std::int32_t>(out_.transfer_route.size());
      out_.transfer_route.push_back(
          route(graph_.place(start).rank, receiver, graph_.action(program_, start).tag));
    }
    return id;
  }

  std::int32_t route(Rank sender, Rank receiver, const Tag& tag) {
    const auto next = static_cast<std::int32_t>(out_.routes.size());
    const auto [found, added] =
        routes_.try_emplace(std::tuple(sender, receiver, tag.payload, tag.from, tag.to), next);
    if (added) {
      const auto lane =
          lanes_.try_emplace(std::pair(sender, receiver), static_cast<std::int32_t>(lanes_.size()));
      out_.routes.push_back(Route{sender, receiver, tag.payload, tag.from, tag.to, lane.first->second});
    }
    return found->second;
  }

  /// One instruction for all members. By the graph's edges all that stands before the collective on any of
  /// them has been passed when the first one is.
  void meet(std::int32_t node, const Action& action) {
    const std::int32_t number = graph_.peer(node);
    if (met_[static_cast<std::size_t>(number)]) return;
    met_[static_cast<std::size_t>(number)] = true;
    Collective collective{action.op, action.op == Op::reduce ? action.stage : StageId{}, {}, {}};
    for (const std::int32_t member : graph_.members(number)) {
      collective.members.push_back(graph_.place(member).rank);
      collective.places.push_back(graph_.place(member).index);
    }
    emit(Instruction::Kind::collective, wait_other, node, static_cast<std::int32_t>(out_.collectives.size()));
    out_.collectives.push_back(std::move(collective));
  }

  const LoweredProgram& program_;
  const Dependencies graph_;
  Instructions out_;
  std::vector<std::int32_t> transfers_;  // per node: of a start_send the number of its transfer
  std::vector<bool> met_;                // per collective of the graph
  std::map<std::pair<Rank, StageId>, std::size_t> seats_;
  std::map<std::tuple<Rank, Rank, Payload, StageId, StageId>, std::int32_t> routes_;
  std::map<std::pair<Rank, Rank>, std::int32_t> lanes_;
};

}  // namespace

Instructions flatten(const LoweredProgram& program) { return Flattener(program).run(); }

}  // namespace stagecraft::simulator
