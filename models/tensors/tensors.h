#pragma once

// A list of tensors: parameters, buffers, what a layer keeps, what goes from layer to layer. A std::vector, but
// that an index beyond its end is an InternalError and no undefined behaviour: layers of a program's own read
// such lists by number.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

class Tensors : public std::vector<at::Tensor> {
  using Base = std::vector<at::Tensor>;

 public:
  using Base::Base;
  Tensors() = default;
  Tensors(Base list) noexcept : Base(std::move(list)) {}  // NOLINT(*-explicit-*): the same, checked

  [[nodiscard]] at::Tensor& operator[](std::size_t i) {
    check(i);
    return Base::operator[](i);
  }
  [[nodiscard]] const at::Tensor& operator[](std::size_t i) const {
    check(i);
    return Base::operator[](i);
  }
  [[nodiscard]] at::Tensor& at(std::size_t i) { return (*this)[i]; }
  [[nodiscard]] const at::Tensor& at(std::size_t i) const { return (*this)[i]; }
  [[nodiscard]] at::Tensor& front() { return (*this)[0]; }
  [[nodiscard]] const at::Tensor& front() const { return (*this)[0]; }
  [[nodiscard]] at::Tensor& back() { return (*this)[size() - 1]; }
  [[nodiscard]] const at::Tensor& back() const { return (*this)[size() - 1]; }

 private:
  void check(std::size_t i) const {
    if (i >= size()) missing(i, size());
  }
  [[noreturn]] static void missing(std::size_t i, std::size_t size);
};

/// XXH3 of the tensor's bytes, wherever it lies (base/fingerprint.h).
[[nodiscard]] std::string hash_of(const at::Tensor& tensor);

}  // namespace stagecraft
