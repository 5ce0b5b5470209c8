#pragma once

#include "models/losses/loss.h"

namespace stagecraft {

/// Logits [samples, classes] against one class per sample.
struct CrossEntropy {
  static constexpr const char* kName = "cross_entropy";
};
void describe(Fields& f, CrossEntropy& settings);
[[nodiscard]] std::shared_ptr<const Loss> make_loss(const CrossEntropy& settings, Reduction reduction);

/// Logits [samples, tokens, classes] against one class per token.
struct TokenCrossEntropy {
  static constexpr const char* kName = "token_cross_entropy";
};
void describe(Fields& f, TokenCrossEntropy& settings);
[[nodiscard]] std::shared_ptr<const Loss> make_loss(const TokenCrossEntropy& settings, Reduction reduction);

}  // namespace stagecraft
