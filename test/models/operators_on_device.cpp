#include "test/models/operators_on_device.h"

#include "models/captured/operators/operators.h"
#include "test/models/operator_calls.h"
#include "test/models/operator_trial.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <utility>
#include <vector>

namespace stagecraft::test {
namespace {

constexpr int kRepeats = 3;

/// Of a number, relative to 1 and to itself. Kernels add in orders of their own.
double within(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-10;
    case at::kHalf:
      return 4e-3;
    case at::kBFloat16:
      return 3e-2;
    default:
      return 5e-5;
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return at::equal(a, b);
  const auto bits = a.scalar_type() == at::kDouble  ? at::kLong
                    : a.scalar_type() == at::kFloat ? at::kInt
                                                    : at::kShort;
  return at::equal(a.contiguous().view(bits), b.contiguous().view(bits));
}

bool close(const at::Tensor& there, const at::Tensor& here) {
  if (!here.is_floating_point()) return at::equal(there, here);
  const double most = within(here.scalar_type());
  return at::allclose(there, here, most, most, /*equal_nan=*/true);
}

std::string difference(const at::Tensor& there, const at::Tensor& here) {
  const at::Tensor apart = (there.to(at::kDouble) - here.to(at::kDouble)).abs();
  return apart.numel() == 0 ? "" : fmt::format("by {:.3g} at most", apart.max().item<double>());
}

/// Whether one of its steps is, in deterministic runs.
bool is_refused(const Json& call) {
  return std::ranges::any_of(call["steps"], [](const Json& step) {
    const captured::Operator* op = captured::find_operator(step[0].get<std::string>());
    return op != nullptr &&
           (op->repeats == captured::Repeats::refused || op->repeats == captured::Repeats::refused_summed);
  });
}

/// Any of equal numbers' places will do.
bool is_a_choice(const std::string& name, std::size_t result) {
  return name == "aten::median.dim" && result == 1;
}

/// With the strides that it has, where nothing is repeated.
at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  const auto strides = tensor.strides();
  if (std::ranges::find(strides, 0) != strides.end()) return tensor.to(device);
  return at::empty_strided(tensor.sizes(), strides, tensor.options().device(device)).copy_(tensor);
}

class Comparison {
 public:
  Comparison(c10::Device device, DeviceFindings& found) : device_(device), found_(found) {}

  void compare(const std::string& name, const Json& call) {
    std::pair<ResultTypes, Tensors> here;
    try {
      here = made_on_cpu(call);
    } catch (const std::exception&) {
      return;  // no such call
    }
    ++found_.calls;
    try {
      const Tensors there = run(call, here.first);
      for (std::size_t i = 0; i < there.size(); ++i) {
        const at::Tensor copied = there[i].cpu();
        if (!is_a_choice(name, i) && !close(copied, here.second[i])) {
          finding(name, fmt::format("result {} differs, {}", i, difference(copied, here.second[i])), call);
        }
        if (there[i].strides() != here.second[i].strides() && there[i].numel() > 0) {
          ++found_.other_strides;
          fmt::print("  {}: result {} has strides {}, on the CPU {}\n", name, i,
                     fmt::join(there[i].strides(), ","), fmt::join(here.second[i].strides(), ","));
        }
      }
      if (at::globalContext().deterministicAlgorithms()) repeat(name, call, here.first, there);
    } catch (const std::exception& error) {
      const std::string what = first_line(error.what());
      if (is_refused(call) && what.find("deterministic") != std::string::npos) {
        ++found_.not_repeatable;
      } else if (what.find("not implemented for 'Long'") != std::string::npos) {
        ++found_.integers;
        fmt::print("  {}: {}\n", name, what);
      } else {
        finding(name, what, call);
      }
    }
  }

 private:
  Tensors run(const Json& call, const ResultTypes& types) const {
    bool ran = false;
    OperatorTrial trial(call, call["steps"].size(), types);
    for (at::Tensor& tensor : trial.tensors()) tensor = moved(tensor, device_);
    return trial.run(device_, true, MatrixProducts::blas, &ran);
  }

  void repeat(const std::string& name, const Json& call, const ResultTypes& types, const Tensors& first) {
    for (int i = 0; i < kRepeats; ++i) {
      const Tensors again = run(call, types);
      for (std::size_t r = 0; r < again.size(); ++r) {
        if (!same_bits(again[r], first[r]))
          return finding(name, fmt::format("result {} has other bits again", r), call);
      }
    }
  }

  void finding(const std::string& name, const std::string& what, const Json& call) {
    ++found_.findings;
    fmt::print("{}: {}: {}\n", name, what, call.dump());
    std::fflush(stdout);
  }

  c10::Device device_;
  DeviceFindings& found_;
};

Json laid_out(Json call, const char* layout, std::size_t least, std::size_t most) {
  for (Json& tensor : call["tensors"]) {
    if (tensor["sizes"].size() >= least && tensor["sizes"].size() <= most) tensor["layout"] = layout;
  }
  return call;
}

}  // namespace

DeviceFindings compare_operators(c10::Device device, const std::string& calls) {
  const c10::InferenceMode as_in_a_run;
  DeviceFindings found;
  Comparison comparison(device, found);
  for (const auto& [name, valid] : valid_calls(calls)) {
    for (const Json& call : valid) {
      comparison.compare(name, call);
      for (const Json& other : {laid_out(call, "transposed", 2, 9), laid_out(call, "channels_last", 4, 4),
                                laid_out(call, "sliced", 1, 9)}) {
        if (other != call) comparison.compare(name, other);
      }
    }
  }
  return found;
}

}  // namespace stagecraft::test
