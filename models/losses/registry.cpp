#include "base/error.h"
#include "models/losses/cross_entropy.h"
#include "models/losses/loss.h"
#include "models/losses/mean_squared_error.h"
#include "models/losses/term_names.h"
#include "models/tensors/libtorch_error.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

template <class... Types>
void add_all(Registry<LossKind>& all) {
  (all.add<Types>(Types::kName,
                  [](const Types& settings, Reduction reduction) { return make_loss(settings, reduction); }),
   ...);
}

}  // namespace

Registry<LossKind>& LossKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<LossKind>(
      [](Registry<LossKind>& added) { add_all<CrossEntropy, TokenCrossEntropy, MeanSquaredError>(added); });
  return all;
}

std::int64_t Loss::units(const FieldTensors&) const {
  throw InternalError("the loss weighs micro-batches by their samples");
}

const std::vector<std::string>& Loss::terms() const {
  static const std::vector<std::string> none;
  return none;
}

std::shared_ptr<const Loss> LossConfig::make() const {
  return named([&] { return fmt::format("loss \"{}\"", type.name()); },
               [&] {
                 std::shared_ptr<const Loss> loss = type.make(reduction);
                 if (loss == nullptr) throw InternalError("what makes it gives a null pointer");
                 if (const std::string why = term_names_refusal(loss->terms()); !why.empty())
                   throw InternalError("its terms: " + why);
                 return loss;
               },
               PlaceInput::no);
}

void describe(Fields& f, LossConfig& c) {
  f.registered("type", c.type,
               "cross_entropy: one class per sample; token_cross_entropy: one per token; mse");
  f.optional("reduction", c.reduction, "over the mini-batch's samples (tokens for token_cross_entropy)");
}

}  // namespace stagecraft
