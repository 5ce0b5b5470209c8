// Holds the layers' written-out backwards against LibTorch's autograd. Run it whenever a layer changes.

#include "llama.h"
#include <ATen/ATen.h>

#include <exception>
#include <iostream>
#include <stagecraft/models/check/check_gradients.h>

int main() {
  llama::register_all();
  const auto layer = [](const stagecraft::Named<stagecraft::LayerKind>& type, std::vector<std::int64_t> input,
                        std::int64_t vocabulary = 0) {
    return type.make({.name = type.name(),
                      .input = std::move(input),
                      .input_dtype = vocabulary > 0 ? at::kLong : at::kDouble,
                      .vocabulary = vocabulary});
  };
  try {
    const at::Tensor x = at::randn({3, 5, 8}, at::kDouble);
    check_gradients(*layer(llama::RmsNorm{}, {5, 8}), x);
    check_gradients(*layer(llama::RotaryAttention{2}, {5, 8}), x);
    check_gradients(*layer(llama::Swiglu{7}, {5, 8}), x);
    check_gradients(*layer(llama::TokenEmbedding{8}, {5}, 11), at::randint(11, {3, 5}, at::kLong));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  std::cout << "4 layers agree with autograd\n";
}
