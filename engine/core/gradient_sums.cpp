#include "engine/core/gradient_sums.h"

#include "base/error.h"
#include "engine/core/exchanged_sum.h"
#include "engine/core/recorded_sum.h"
#include "schedules/rules/reductions.h"

#include <utility>

namespace stagecraft {

GradientSums::GradientSums(const StagedModel& model, std::vector<Stage>& stages, Transport& transport,
                           at::Device device, Recorder& recorder)
    : model_(model),
      stages_(stages),
      transport_(transport),
      device_(device),
      recorder_(recorder),
      reduced_(model.model.layers.size()),
      held_(model.model.ties.size()),
      sums_(stages.size()),
      tie_sums_(model.model.ties.size()) {
  const auto is_tied = [&](int layer, std::size_t parameter) {
    for (const Tie& tie : model.model.ties) {
      for (const Tie::Holder& holder : tie.holders) {
        if (holder.layer == layer && static_cast<std::size_t>(holder.parameter) == parameter) return true;
      }
    }
    return false;
  };
  for (std::size_t k = 0; k < stages.size(); ++k) {
    for (int layer = stages[k].first_layer(); layer < stages[k].last_layer(); ++layer) {
      for (std::size_t p = 0; p < stages[k].parameters(layer).size(); ++p) {
        if (!is_tied(layer, p)) reduced_[static_cast<std::size_t>(layer)].push_back(p);
      }
    }
  }
  for (std::size_t t = 0; t < held_.size(); ++t) {
    const std::vector<Tie::Holder>& holders = model.model.ties[t].holders;
    for (std::size_t i = holders.size(); i-- > 0;) {  // as copies_of has them: the last layer first
      for (std::size_t k = 0; k < stages.size(); ++k) {
        const auto [layer, parameter] = holders[i];
        if (stages[k].first_layer() <= layer && layer < stages[k].last_layer())
          held_[t].push_back({k, layer, static_cast<std::size_t>(parameter)});
      }
    }
  }
}

void GradientSums::begin(const RankProgram& program, std::int64_t first_step) {
  first_step_ = first_step;
  program_ = &program;
  if (program.sums) transport_.set_background([this] { poll(); });
}

void GradientSums::end() {
  // First the background: what it would poll goes.
  if (program_ != nullptr && program_->sums) transport_.set_background(nullptr);
  program_ = nullptr;
  for (std::unique_ptr<ReplicaSum>& sum : sums_) sum.reset();
  for (std::unique_ptr<ReplicaSum>& sum : tie_sums_) sum.reset();
}

void GradientSums::poll() {
  for (const auto* sums : {&sums_, &tie_sums_}) {
    for (const std::unique_ptr<ReplicaSum>& sum : *sums) {
      if (sum != nullptr) sum->poll();
    }
  }
}

Bytes GradientSums::bytes_summed(const Stage& stage) {
  Bytes bytes;
  const auto count = [&](const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) bytes += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  };
  for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
    count(stage.parameters(layer));
    count(stage.buffers(layer, OverReplicas::mean));
    count(stage.buffers(layer, OverReplicas::first));
  }
  return bytes;
}

std::unique_ptr<ReplicaSum> GradientSums::make_sum(const std::vector<Rank>& copies, const Tag& tag,
                                                   Bytes staging, const Action& action) {
  std::unique_ptr<ReplicaSum> sum = transport_.make_sum(copies, tag);
  if (sum == nullptr) sum = std::make_unique<ExchangedSum>(transport_, copies, tag, staging, device_);
  if (!recorder_.on()) return sum;
  return std::make_unique<RecordedSum>(std::move(sum), recorder_, action, first_step_ + action.group.value);
}

AfterLayer GradientSums::join(std::size_t stage, Group group) {
  Stage& summed = stages_[stage];
  STAGECRAFT_CHECK(sums_[stage] == nullptr, "a stage's sums are finished one after another");
  const std::vector<Rank>& replicas = program_->header.placement.ranks[summed.id().index()];
  const Bytes staging = reduce_staging(bytes_summed(summed), static_cast<int>(replicas.size()));
  sums_[stage] = make_sum(replicas, Tag::reduction(summed.id(), group), staging,
                          {.op = Op::reduce, .stage = summed.id(), .group = group});
  return [this, &summed, &sum = *sums_[stage], group](int layer) {
    const std::vector<std::size_t>& parameters = reduced_[static_cast<std::size_t>(layer)];
    if (!parameters.empty()) {
      const Tensors& gradients = summed.gradients(group, layer);
      for (const std::size_t parameter : parameters) sum.add(gradients[parameter]);
    }
    // All that is small travels together up to here; behind the first layer nothing more comes to travel
    // with.
    if (layer == summed.first_layer()) sum.flush();
  };
}

void GradientSums::reduce(std::size_t stage, Group group) {
  Stage& reduced = stages_[stage];
  if (sums_[stage] == nullptr) {  // no micro-batch of the group was this rank's
    const AfterLayer hand_in = join(stage, group);
    for (int layer = reduced.last_layer(); layer-- > reduced.first_layer();) hand_in(layer);
  }
  // Buffers come behind all gradients, on every replica: tensors of a sum meet by their order alone.
  ReplicaSum& sum = *sums_[stage];
  const std::vector<Rank>& replicas = program_->header.placement.ranks[reduced.id().index()];
  Tensors averaged;
  for (int layer = reduced.first_layer(); layer < reduced.last_layer(); ++layer) {
    for (const at::Tensor& buffer : reduced.buffers(layer, OverReplicas::mean)) {
      averaged.push_back(buffer);
      sum.add(buffer);
    }
    for (const at::Tensor& buffer : reduced.buffers(layer, OverReplicas::first)) {
      // Plus zeros, bytes of any type are the first replica's.
      if (transport_.rank() != replicas.front()) buffer.zero_();
      sum.add(buffer.view({-1}).view(at::kByte));
    }
  }
  sum.finish();
  sums_[stage].reset();
  if (!reduced.frozen()) reduced.summed(group);
  for (const at::Tensor& buffer : averaged) buffer.div_(static_cast<double>(replicas.size()));
}

void GradientSums::join_ties(std::size_t at, Group group) {
  for (const TieId tie : program_->ties_joined_at(at)) join_tie(tie, group);
}

void GradientSums::join_tie(TieId tie, Group group) {
  STAGECRAFT_CHECK(tie_sums_.at(tie.index()) == nullptr, "a weight's sums follow each other");
  std::vector<at::Tensor> own;
  for (const auto& [stage, layer, parameter] : held_[tie.index()]) {
    own.push_back(stages_[stage].gradients(group, layer)[parameter]);
  }
  const ProgramHeader& program = program_->header;
  const std::vector<Rank> copies = copies_of(program.placement, program.ties[tie.index()]);
  const Bytes weight{static_cast<std::int64_t>(own.front().nbytes())};
  std::unique_ptr<ReplicaSum> sum =
      make_sum(copies, Tag::tied(tie, group), tie_staging(weight, copies, transport_.rank()),
               {.op = Op::tie, .group = group, .tie = tie});
  sum->add(own);
  sum->poll();  // one weight, and all of it is there: it leaves now, not with the next layer's progress
  tie_sums_[tie.index()] = std::move(sum);
}

void GradientSums::tie(TieId tie, Group group) {
  // Without micro-batches in the group this rank adds zeros.
  if (tie_sums_.at(tie.index()) == nullptr) join_tie(tie, group);
  tie_sums_[tie.index()]->finish();
  tie_sums_[tie.index()].reset();
  for (const auto& [stage, layer, parameter] : held_[tie.index()]) {
    stages_[stage].summed(group, layer, static_cast<int>(parameter));
  }
}

}  // namespace stagecraft
