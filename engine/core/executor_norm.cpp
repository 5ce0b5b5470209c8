// An executor's part in a step's norm: whose squares count, who adds them, and who hears of them when.

#include "engine/core/clipping.h"
#include "engine/core/executor.h"
#include "engine/core/overflow.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

namespace stagecraft {
namespace {

/// Every parameter's, of all stages in order. `mine`: of the stages that this rank is the first replica of, which
/// every rank has in ascending order. Collective.
std::vector<double> gather_squares(Transport& transport, const Placement& placement,
                                   const std::vector<int>& parameter_counts,
                                   const std::vector<double>& mine) {
  const std::vector<std::vector<double>> all = transport.all_gather(mine);
  std::vector<double> squares;
  std::vector<std::size_t> next(all.size(), 0);
  for (std::size_t s = 0; s < parameter_counts.size(); ++s) {
    const std::size_t rank = placement.ranks[s].front().index();
    for (int k = 0; k < parameter_counts[s]; ++k) squares.push_back(all[rank].at(next[rank]++));
  }
  return squares;
}

/// Of the last parameter whose gradient is not finite.
NotFiniteError norm_not_finite(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                               std::int64_t step, const std::vector<double>& squares) {
  std::size_t at = squares.size() - 1;
  while (at > 0 && std::isfinite(squares[at])) --at;
  return gradient_not_finite(model, stage_layers, step, at, squares[at]);
}

}  // namespace

Tensors Executor::all_gradients(Group group) {
  Tensors all;
  for (Stage& stage : context_.stages) {
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
      const Tensors& gradients = stage.gradients(group, layer);
      all.insert(all.end(), gradients.begin(), gradients.end());
    }
  }
  return all;
}

Tensors Executor::counted_gradients(Group group) {
  Tensors counted;
  for (Stage& stage : context_.stages) {
    if (program_.placement.ranks[stage.id().index()].front() != me()) continue;
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
      const Tensors& gradients = stage.gradients(group, layer);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const bool counts = context_.model.ties.empty() || context_.model.owns(layer, static_cast<int>(i));
        counted.push_back(counts ? gradients[i] : at::Tensor());
      }
    }
  }
  return counted;
}

bool Executor::norm_may_be_late() const {
  const WorkerOptions& options = context_.options;
  const bool decides = context_.loss_scale != nullptr || options.on_overflow == OnOverflow::skip;
  return !options.device.is_cpu() && !decides;
}

void Executor::agree_norm(const Action& action) {
  context_.late_norms.hear_all();
  GroupState& group = groups_[action.group.index()];
  group.agreed = true;
  const Tensors counted = counted_gradients(action.group);
  Transport& transport = context_.transport;
  if (norm_may_be_late()) {
    const bool applies_alone = context_.options.gradient_clipping == 0 || transport.world() == 1;
    if (applies_alone) return launch_norm(action, counted, nullptr);
    std::vector<Rank> all;
    for (int r = 0; r < transport.world(); ++r) all.emplace_back(r);
    if (const auto exchange = transport.make_sum(all, Tag::squares(action.group)))
      return launch_norm(action, counted, exchange.get());
  }
  const std::vector<double> squares = gather_squares(transport, program_.placement, context_.parameter_counts,
                                                     sums_of_squares(counted, [&] { transport.progress(); }));
  LossScale* const loss_scale = context_.loss_scale;
  const double scale = loss_scale != nullptr ? loss_scale->value() : 1;
  const double norm = norm_of(squares, context_.options.device) / scale;
  group.skipped = !std::isfinite(norm);
  if (loss_scale != nullptr) {
    group.loss_scale = scale;
    loss_scale->update(group.skipped);
  } else if (group.skipped && context_.options.on_overflow == OnOverflow::stop) {
    throw norm_not_finite(context_.model, context_.stage_layers, step_of(action), squares);
  }
  if (group.skipped) return;
  group.norm = norm;
  const double limit = context_.options.gradient_clipping;
  const double factor = (limit > 0 ? clip_factor(norm, limit) : 1) / scale;
  if (factor != 1) multiply(all_gradients(action.group), factor);
}

void Executor::launch_norm(const Action& action, const Tensors& counted, ReplicaSum* exchange) {
  const bool some_count = std::any_of(counted.begin(), counted.end(),
                                      [](const at::Tensor& gradient) { return gradient.defined(); });
  at::Tensor squares = some_count ? squares_on_device(counted)
                                  : at::zeros({static_cast<std::int64_t>(counted.size())}, at::kDouble);
  if (exchange != nullptr) {
    squares = among_all(squares);
    exchange->add(squares);
    exchange->finish();
  }
  const LateNorm heard = std::make_shared<std::optional<double>>();
  groups_[action.group.index()].late_norm = heard;
  context_.late_norms.add(squares, [heard, &transport = context_.transport, placement = program_.placement,
                                    &counts = context_.parameter_counts, device = context_.options.device,
                                    &model = context_.model, &layers = context_.stage_layers,
                                    exchanged = exchange != nullptr,
                                    step = step_of(action)](const std::vector<double>& known) {
    const std::vector<double> all = exchanged ? known : gather_squares(transport, placement, counts, known);
    *heard = norm_of(all, device);
    if (std::isfinite(**heard)) return;
    transport.barrier();  // all have found the same: none hears of another's end first
    throw norm_not_finite(model, layers, step, all);
  });
  const double limit = context_.options.gradient_clipping;
  if (limit > 0 && (some_count || exchange != nullptr)) {
    multiply(all_gradients(action.group), clip_factor(norm_of(squares), limit));
  }
}

at::Tensor Executor::among_all(const at::Tensor& squares) const {
  const std::vector<int>& counts = context_.parameter_counts;
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const at::Tensor all = at::zeros({total}, at::TensorOptions(context_.options.device).dtype(at::kDouble));
  std::int64_t to = 0;
  std::int64_t from = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    if (squares.is_cpu()) break;  // the rank brings none
    if (program_.placement.ranks[stage].front() == me()) {
      all.narrow(0, to, counts[stage]).copy_(squares.narrow(0, from, counts[stage]));
      from += counts[stage];
    }
    to += counts[stage];
  }
  return all;
}

}  // namespace stagecraft
