#pragma once

// Tensors that a call must leave as they are.

#include "models/check/layer_check.h"
#include "models/tensors/tensors.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace stagecraft {

/// What is wrong with what is tried.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw Broken(otherwise);
}

/// What `work` says, or what it throws, as the aspect's result. False where it threw anything but Broken.
bool attempt(Checked& checked, const std::function<std::string()>& work);

/// Same type, shape and bytes; or both undefined.
[[nodiscard]] bool same_bits(const at::Tensor& a, const at::Tensor& b);
[[nodiscard]] bool same_bits(const Tensors& a, const Tensors& b);
/// Undefined ones stay so.
[[nodiscard]] Tensors clones(const Tensors& tensors);

class Watch {
 public:
  void add(const std::string& name, const at::Tensor& tensor);
  /// "its input", or "its input 1" of several.
  void add_all(const std::string& name, const Tensors& tensors);
  /// Throws Broken: "`who` modifies ...".
  void require_untouched(const std::string& who) const;

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor, before;
  };
  std::vector<Watched> watched_;
};

}  // namespace stagecraft
