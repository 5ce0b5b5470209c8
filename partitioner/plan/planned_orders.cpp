// A plan's own program: read from the lines it carries, checked.
#include "partitioner/plan/plan.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_text.h"
#include "schedules/program/recompute.h"
#include "schedules/program/step_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <utility>

namespace stagecraft {
namespace {

constexpr const char* kRankWord = "rank ";

std::string header_of(const Plan& plan) {
  std::string text = "stagecraft program 1\nstages";
  for (const StagePlan& stage : plan.stages) {
    std::vector<std::int32_t> ranks;
    for (const Rank rank : stage.ranks) ranks.push_back(rank.value);
    text += fmt::format(" {}", fmt::join(ranks, ","));
  }
  return text + fmt::format("\ngroups {}\n", plan.program->micro_batches);
}

/// The lines as a program's text; of all ranks, or of one and the others empty.
std::string text_of(const Plan& plan, std::optional<std::size_t> only = {}) {
  std::string text = header_of(plan);
  for (std::size_t r = 0; r < plan.program->ranks.size(); ++r) {
    const bool wanted = !only || *only == r;
    text += fmt::format("{}{}: {}\n", kRankWord, r, wanted ? plan.program->ranks[r] : std::string());
  }
  return text;
}

/// What is wrong, said of the rank whose line it is in.
[[noreturn]] void blame(const Plan& plan, const std::string& file, const InputError& error) {
  for (std::size_t r = 0; r < plan.program->ranks.size(); ++r) {
    try {
      (void)program_from_text(text_of(plan, r), "");
    } catch (const InputError& of_rank) {
      const std::string what = of_rank.what();
      const std::size_t line = what.find("line ");
      const std::size_t colon = line == std::string::npos ? line : what.find(": ", line);
      throw InputError({file, fmt::format("/program/ranks/{}", r)},
                       colon == std::string::npos ? what : what.substr(colon + 2));
    }
  }
  throw InputError({file, "/program/ranks"}, error.what());
}

void refuse_shape(const Plan& plan, const std::string& file) {
  const auto world = to_size(plan.placement().world());
  const std::vector<std::string>& ranks = plan.program->ranks;
  if (ranks.size() != world) {
    throw InputError({file, "/program/ranks"},
                     fmt::format("{} ranks' orders for {} ranks", ranks.size(), world));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].find_first_of("\n\r#") == std::string::npos) continue;
    throw InputError({file, fmt::format("/program/ranks/{}", r)}, "expected one line without comments");
  }
}

}  // namespace

PlannedOrders planned_orders(const ScheduleProgram& program) {
  ScheduleProgram computes = program;
  for (auto& list : computes.ranks) {
    std::erase_if(list,
                  [](const Action& action) { return !is_compute(action.op) || action.op == Op::recompute; });
  }
  PlannedOrders planned{program.micro_batches(), {}};
  std::istringstream text(to_text(computes));
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with(kRankWord)) continue;
    const std::size_t begin = line.find(':') + 1;
    planned.ranks.push_back(begin < line.size() ? line.substr(begin + 1) : std::string());
  }
  return planned;
}

ScheduleProgram carried_program(const Plan& plan, const std::string& file) {
  refuse_shape(plan, file);
  ScheduleProgram read;
  try {
    read = program_from_text(text_of(plan), "");
  } catch (const InputError& error) {
    blame(plan, file, error);
  }
  std::vector<std::vector<Compute>> orders;
  for (std::size_t r = 0; r < read.ranks.size(); ++r) {
    auto& order = orders.emplace_back();
    for (const Action& action : read.ranks[r]) {
      if (!is_compute(action.op) || action.op == Op::recompute || action.version != Version{0}) {
        throw InputError(
            {file, fmt::format("/program/ranks/{}", r)},
            fmt::format("{}: expected forwards and backwards (F, I, W, B) of version 0 only; the rest of "
                        "a step is added, recomputes where the stages ask for them",
                        describe_action(action)));
      }
      order.push_back({action.op, action.stage, action.micro_batch});
    }
  }
  read.schedule = plan.schedule.name;
  ScheduleProgram program =
      synchronous_program(std::move(static_cast<ProgramHeader&>(read)), orders, plan.schedule.agree_norm);
  complete(program, plan.gradient_from, plan.recompute(), plan.also_load(), plan.ties);
  return program;
}

void validate_carried(const Plan& plan, const std::string& file) {
  if (!find_schedule(plan.schedule.name).synchronous) {
    throw InputError(
        {file, "/program"},
        fmt::format("a program of one step is for synchronous schedules; {} is not", plan.schedule.name));
  }
  if (plan.program->micro_batches != plan.micro_batches) {
    throw InputError({file, "/program/micro_batches"},
                     fmt::format("expected {}, as the plan has in a step, found {}", plan.micro_batches,
                                 plan.program->micro_batches));
  }
  const Proof proof = check(lower(carried_program(plan, file)));
  if (!proof.accepted()) {
    throw InputError({file, "/program"}, "the checker refuses it: " + refusal(proof.findings));
  }
}

}  // namespace stagecraft
