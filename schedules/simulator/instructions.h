#pragma once

// A lowered program as the simulator reads it: one flat list in an order in which every time an instruction
// needs is known when its turn comes, with all look-ups (who is the peer, which price, which link) done once.

#include "schedules/program/program.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft::simulator {

/// Where a rank's time is booked.
enum Account : std::uint8_t {
  forward,
  backward,
  step,
  wait_activation,
  wait_gradient,
  wait_send,
  wait_other,
  account_count
};

/// What is priced of a stage on one of its ranks: compute prices lie at stage_replica * part_count + part.
enum Part : std::uint8_t {
  forward_part,
  recompute_part,       ///< of a micro-batch that Recompute::all_but_last repeats as well
  last_recompute_part,  ///< of one that only Recompute::all repeats
  backward_part,
  input_part,
  weight_part,
  step_part,
  part_count
};

/// All transfers of one kind over one boundary between the same two ranks take the same time. Those between
/// the same two ranks in the same direction share a lane.
struct Route {
  Rank sender, receiver;
  Payload payload = Payload::activation;
  StageId from, to;
  std::int32_t lane = -1;
};

/// A reduce, tie or agree_norm with its members (places of the action in their ranks' lists).
struct Collective {
  Op op = Op::reduce;
  StageId stage;  ///< none: of all ranks, or a tie
  TieId tie;
  std::vector<StageId> holders;  ///< of the tied weight
  std::vector<Rank> members;
  std::vector<std::int32_t> places;
};

[[nodiscard]] constexpr std::size_t at(std::int32_t n) { return static_cast<std::size_t>(n); }

struct Instruction {
  enum class Kind : std::uint8_t {
    compute,     ///< operand: price
    post,        ///< operand: transfer
    send,        ///< operand: transfer
    wait,        ///< operand: transfer; ends with it
    collective,  ///< operand: collective; once for all members, an agreement
    join,        ///< operand: collective; the rank's part in a reduction is ready, which begins with the last
    finish,      ///< operand: collective; waits for the reduction's end
  };
  Kind kind = Kind::compute;
  Account account = forward;
  std::int32_t rank = -1;
  std::int32_t operand = -1;
  std::int32_t place = -1;  ///< of the action in its rank's list
};

struct Instructions {
  std::vector<Instruction> order;
  std::vector<StageReplica> stage_replicas;  ///< by their ranks and stages alone
  std::vector<Route> routes;
  std::vector<std::int32_t> transfer_route;  ///< per transfer
  std::vector<Collective> collectives;
  std::size_t lanes = 0;

  [[nodiscard]] std::size_t route_number(std::int32_t transfer) const {
    return at(transfer_route[at(transfer)]);
  }
  [[nodiscard]] const Route& route_of(std::int32_t transfer) const { return routes[route_number(transfer)]; }
  [[nodiscard]] std::size_t lane_of(std::int32_t transfer) const { return at(route_of(transfer).lane); }
};

/// Throws RefusedError when the program cannot finish, with the transfer that lacks an end or with the
/// cycle.
[[nodiscard]] Instructions flatten(const LoweredProgram& program);

}  // namespace stagecraft::simulator
