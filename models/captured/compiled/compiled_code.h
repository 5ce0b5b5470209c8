#pragma once

// Native code of stretches of a graph's steps: shared libraries of AOTInductor, which check nothing of what
// they are given. So each call compares its inputs with what the code was made for.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// A loaded shared library. Any thread: each call has an instance of the code to itself.
class CompiledCode {
 public:
  /// Throws InputError where it cannot be loaded.
  CompiledCode(const std::string& path, std::size_t outputs);
  ~CompiledCode();
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

/// A stretch of steps as one: what Step::compiled stands for.
struct CompiledRun {
  struct Input {
    at::ScalarType dtype;
    std::vector<std::int64_t> sizes, strides;
  };
  std::string where;  ///< for messages
  std::vector<Input> inputs;
  std::shared_ptr<const CompiledCode> code;

  /// An input of other strides is copied into the declared ones first. Throws InternalError for another type
  /// or other sizes.
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor> given) const;
};

}  // namespace stagecraft::captured
