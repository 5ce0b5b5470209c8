// What is done around calls on GPUs, whose kernels make other things than the CPU's: as an H200 made them
// (docs/measurements/2026-11-28-gpus.md), without a GPU.

#include "base/error.h"
#include "models/captured/format/graph_values.h"
#include "models/captured/format/step_parser.h"
#include "models/captured/replay/precautions.h"
#include "test/models/operator_calls.h"
#include "test/models/operator_trial.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::captured;
using namespace stagecraft::test;

namespace {

const c10::Device kCuda(c10::kCUDA, 0);

/// The only step of a call, with the types that the CPU makes.
class Around {
 public:
  Around(const std::string& line, c10::Device device, bool reads_last = true) {
    OperatorTrial trial(call_of(Json::parse(line)));
    tensors_ = trial.tensors();
    step_ = trial.steps().back();
    for (const Argument& argument : step_.arguments) {
      const bool fixed = argument.kind == Argument::Kind::constant;
      constants_.push_back(fixed                                      ? argument.constant
                           : argument.kind == Argument::Kind::integer ? c10::IValue(argument.sizes[0].at(1))
                           : argument.kind == Argument::Kind::integers
                               ? c10::IValue(std::vector<std::int64_t>{})
                               : c10::IValue());
    }
    for (const ValueId id : step_.results)
      types_.push_back(trial.values()[static_cast<std::size_t>(id)].type);
    if (!reads_last) step_.results.back() = kNoValue;
    precautions_ = precautions_for(StepView(step_, trial.values(), 1, constants_), device);
  }

  [[nodiscard]] Tensors taken(Tensors given) const {
    torch::jit::Stack stack(given.begin(), given.end());
    precautions_.take(stack, step_);
    return tensors_of(stack);
  }
  [[nodiscard]] Tensors settled(Tensors made) const {
    torch::jit::Stack stack(made.begin(), made.end());
    precautions_.settle(stack, types_, 1);
    return tensors_of(stack);
  }
  void require_success(Tensors made) const {
    precautions_.require_success(torch::jit::Stack(made.begin(), made.end()), step_);
  }
  [[nodiscard]] const Tensors& tensors() const { return tensors_; }
  [[nodiscard]] std::string called() const { return precautions_.op->schema().name(); }

 private:
  static Tensors tensors_of(const torch::jit::Stack& stack) {
    Tensors tensors;
    for (const c10::IValue& value : stack) tensors.push_back(value.toTensor());
    return tensors;
  }

  Step step_;
  Tensors tensors_;
  std::vector<c10::IValue> constants_;
  std::vector<ValueType> types_;
  Precautions precautions_;
};

}  // namespace

TEST_CASE("on GPUs a view that may not be one is a copy", "[device_precautions]") {
  CHECK(Around(R"(["aten::view", "f32[2,6]", [3,4]])", kCuda).called() == "aten::reshape");
  CHECK(Around(R"(["aten::_unsafe_view", "f32[2,6]", [3,4]])", kCuda).called() == "aten::reshape");
  CHECK(Around(R"(["aten::view", "f32[2,6]", [3,4]])", at::kCPU).called() == "aten::view");
}

TEST_CASE("kernels of GPUs that read memory as if it lay densely get it so", "[device_precautions]") {
  const at::Tensor image = at::rand({2, 6, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const char* const shuffle = R"(["aten::native_channel_shuffle", "f32[2,6,4,5]", 2])";
  CHECK(Around(shuffle, kCuda).taken({image})[0].is_contiguous());
  CHECK_FALSE(Around(shuffle, at::kCPU).taken({image})[0].is_contiguous());
  const Around norm(R"(["aten::_weight_norm_interface", "f32[4,3]", "f32[4,1]", 0])", kCuda);
  CHECK(norm.taken({at::rand({3, 4}).t(), at::rand({4, 1})})[0].is_contiguous());
}

TEST_CASE("results that say nothing are as the CPU leaves them", "[device_precautions]") {
  const at::Tensor image = at::rand({4, 6, 3, 5}), made = at::rand({6});
  const Around evaluates(
      R"(["aten::_native_batch_norm_legit_no_training", "f32[4,6,3,5]", "f32[6]", "f32[6]", "f32[6]", "f32[6]", 0.1, 1e-5])",
      kCuda);
  const Tensors norm = evaluates.settled({image, made, made});
  CHECK(norm[0].is_same(image));
  CHECK(norm[1].sizes() == at::IntArrayRef{0});
  CHECK(norm[2].sizes() == at::IntArrayRef{0});

  const Tensors sigmoid = Around(R"(["aten::log_sigmoid_forward", "f32[2,3]"])", kCuda)
                              .settled({at::rand({2, 3}), at::empty({0})});
  CHECK(at::equal(sigmoid[1], at::zeros({2, 3})));

  const std::string loss = R"(["aten::nll_loss2d_forward", "f32[2,5,3,4]", "i64[2,3,4]<5", null, )";
  const at::Tensor unwritten = at::full({}, 0.5);
  CHECK(Around(loss + "0, 1]", kCuda).settled({at::rand({2, 3, 4}), unwritten})[1].item<float>() == 0);
  CHECK(Around(loss + "1, 1]", kCuda).settled({at::rand({}), unwritten})[1].item<float>() == 0.5);
}

TEST_CASE("norms of narrow numbers with weights in float32 are computed in float32 on GPUs",
          "[device_precautions]") {
  const std::string line =
      R"(["aten::native_layer_norm", "bf16[4,3,8]", [3,8], "f32[3,8]", "f32[3,8]", 1e-5])";
  const Around mixed(line, kCuda);
  const Tensors given{mixed.tensors()[0], mixed.tensors()[1], mixed.tensors()[2]};
  for (const at::Tensor& tensor : mixed.taken(given)) CHECK(tensor.scalar_type() == at::kFloat);
  const Tensors made = mixed.settled({at::rand({4, 3, 8}), at::rand({4, 1, 1}), at::rand({4, 1, 1})});
  CHECK(made[0].scalar_type() == at::kBFloat16);
  CHECK(made[1].scalar_type() == at::kFloat);
  CHECK(Around(line, at::kCPU).taken(given)[0].scalar_type() == at::kBFloat16);
}

TEST_CASE("a matrix that has no inverse or no decomposition is an error, unless something reads the code",
          "[device_precautions]") {
  const at::Tensor made = at::rand({2, 3, 3});
  const auto codes = [](int first, int second) { return at::tensor({first, second}, at::kInt); };
  const std::string inverse = R"(["aten::linalg_inv_ex", "f32[2,3,3]", false])";
  const Around unread(inverse, at::kCPU, false), read(inverse, at::kCPU), on_device(inverse, kCuda, false);
  CHECK_NOTHROW(unread.require_success({made, codes(0, 0)}));
  CHECK_THROWS_WITH(unread.require_success({made, codes(0, 2)}),
                    Catch::Matchers::EndsWith("aten::linalg_inv_ex: a matrix is singular"));
  CHECK_NOTHROW(read.require_success({made, codes(0, 2)}));
  CHECK_NOTHROW(on_device.require_success({made, codes(0, 2)}));
  const Around root(
      R"(["aten::linalg_cholesky_ex", {"made": ["aten::mm", "f32[3,6]", "f32[6,3]"], "take": 0}, false])",
      at::kCPU, false);
  CHECK_THROWS_WITH(root.require_success({made, codes(0, 2)}),
                    Catch::Matchers::EndsWith("a matrix is not positive-definite"));
}

TEST_CASE("rows that a decomposition has exchanged are compared with those that there are",
          "[device_precautions]") {
  const std::string line =
      R"(["aten::linalg_lu_solve", {"made": ["aten::linalg_lu_factor_ex", "a=f32[3,3]"], "take": 0},
          {"made": ["aten::linalg_lu_factor_ex", "=a"], "take": 1}, "f32[3,4]", true, false])";
  const Around solve(line, at::kCPU);
  const at::Tensor lu = at::rand({3, 3}), right = at::rand({3, 4});
  CHECK_NOTHROW(solve.taken({lu, at::tensor({1, 2, 3}, at::kInt), right}));
  for (const int beyond : {0, 4, -1}) {
    CHECK_THROWS_WITH(solve.taken({lu, at::tensor({1, beyond, 3}, at::kInt), right}),
                      Catch::Matchers::EndsWith("expected indices from 1 to 3"));
  }
}

TEST_CASE("what makes the host wait for a GPU is refused there", "[device_precautions]") {
  for (const char* const line :
       {R"(["aten::_linalg_eigh", "f32[2,3,3]", {"string": "L"}, true])",
        R"(["aten::_linalg_svd", "f32[2,4,3]", false, true, null])",
        R"(["aten::linalg_matrix_exp", "f32[2,3,3]"])",
        R"(["aten::linalg_pinv.atol_rtol_tensor", "f32[2,4,3]", null, null, false])"}) {
    CHECK_NOTHROW(Around(line, at::kCPU));
    CHECK_THROWS_AS(Around(line, kCuda), InputError);
  }
}
