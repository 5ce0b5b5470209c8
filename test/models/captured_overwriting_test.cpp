// Results written over an argument that dies: the same bits, and never over what somebody else still holds.

#include "models/captured/operators/operators.h"
#include "models/captured/replay/overwriting.h"
#include "models/captured/replay/replay.h"
#include "test/support/catch.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <utility>

namespace stagecraft {
namespace {

using captured::overwritable;
using torch::jit::Stack;

/// Arguments that fit any element-wise operator: tensors of one size, defaults, and numbers where there are none.
Stack arguments_of(const c10::FunctionSchema& schema, at::ScalarType dtype) {
  Stack stack;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->kind() == c10::TypeKind::TensorType) {
      const at::Tensor random = at::rand({5, 33}, at::kFloat);
      stack.emplace_back(argument.name() == "condition" ? random.gt(0.5) : random.add(0.25).to(dtype));
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::BoolType) {
      stack.emplace_back(true);
    } else {
      stack.emplace_back(0.5);
    }
  }
  return stack;
}

/// Holds each once: a list in braces would hold them too.
template <class... Values>
Stack stack_of(Values&&... values) {
  Stack stack;
  (stack.emplace_back(std::forward<Values>(values)), ...);
  return stack;
}

captured::Argument value(captured::ValueId id) {
  captured::Argument argument;
  argument.kind = captured::Argument::Kind::value;
  argument.values = {id};
  return argument;
}

Stack copy_of(const Stack& stack) {
  Stack copy;
  for (const c10::IValue& value : stack) {
    copy.push_back(value.isTensor() ? c10::IValue(value.toTensor().clone()) : value);
  }
  return copy;
}

}  // namespace

TEST_CASE("every form that overwrites makes the operator's bits, over each of its arguments", "[captured]") {
  for (const auto& [name, form] : captured::overwriting_forms()) {
    const captured::Operator* op = captured::find_operator(name);
    REQUIRE(op != nullptr);
    const c10::OperatorHandle plain = captured::handle_of(*op);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const Stack given = arguments_of(plain.schema(), dtype);
      Stack expected = copy_of(given);
      plain.callBoxed(expected);
      for (std::size_t i = 0; i < given.size(); ++i) {
        if (!given[i].isTensor() || given[i].toTensor().scalar_type() != dtype) continue;
        INFO(form << ", argument " << i << ", " << dtype);
        Stack stack = copy_of(given);
        const at::Tensor room = stack[i].toTensor();
        stack.emplace_back(room);
        captured::overwriting_form_of(name)->callBoxed(stack);
        CHECK(stack[0].toTensor().is_same(room));
        CHECK(room.equal(expected[0].toTensor()));
      }
    }
  }
  CHECK_FALSE(captured::overwriting_form_of("aten::addmm"));
}

TEST_CASE("a result is written over an argument only if nobody else holds its memory", "[captured]") {
  const auto made = [] { return at::rand({4, 6}); };
  SECTION("the first that is free") {
    const at::Tensor held = made();
    const Stack stack = stack_of(held, made(), made(), 1);
    const auto found = overwritable(stack, {0, 1, 2});
    REQUIRE(found);
    CHECK(found->is_same(stack[1].toTensor()));
    CHECK_FALSE(overwritable(stack, {0}));
    CHECK_FALSE(overwritable(stack, {}));
  }
  SECTION("no view of what is held, but one of what is not") {
    const at::Tensor held = made();
    CHECK_FALSE(overwritable(stack_of(held.view({6, 4}), at::rand({6, 4})), {0}));
    const c10::InferenceMode as_in_a_run;  // else a view holds what it is a view of
    const auto alone = [&] { return made().view({6, 4}); };
    CHECK(overwritable(stack_of(alone(), at::rand({6, 4})), {0}));
  }
  SECTION("no view that is conjugated or negated, though nobody else holds its memory") {
    const c10::InferenceMode as_in_a_run;
    const auto complex = [] { return at::rand({4, 6}, at::kComplexFloat); };
    const auto conjugated = [&] { return complex().conj(); };  // what it is a view of is gone
    const auto negated = [&] { return made()._neg_view(); };
    CHECK(overwritable(stack_of(complex(), complex()), {0}));
    CHECK_FALSE(overwritable(stack_of(conjugated(), complex()), {0}));
    CHECK_FALSE(overwritable(stack_of(negated(), made()), {0}));
  }
  SECTION("nothing that lies in somebody else's memory") {
    std::array<float, 24> numbers{};
    CHECK_FALSE(overwritable(stack_of(at::from_blob(numbers.data(), {4, 6}), made()), {0}));
  }
  SECTION("all lie in memory in the same order, numbers apart") {
    CHECK(overwritable(stack_of(made(), at::full({}, 2.0)), {0}));
    CHECK(overwritable(stack_of(made(), at::Tensor()), {0}));
    CHECK_FALSE(overwritable(stack_of(made(), at::rand({6, 4}).t()), {0}));
    CHECK_FALSE(overwritable(stack_of(at::rand({6, 4}).t(), at::rand({6, 4}).t()), {0}));
    CHECK_FALSE(overwritable(stack_of(made(), at::rand({6})), {0}));
  }
}

TEST_CASE("a dropout over an argument that dies draws and makes the same bits as beside it", "[captured]") {
  const c10::InferenceMode as_in_a_run;
  captured::Value number, mask;
  number.type.dtype = at::kFloat;
  number.type.sizes = mask.type.sizes = {{.times = 1, .plus = 0}, {.times = 0, .plus = 130}};
  mask.type.dtype = at::kBool;
  captured::Step doubled, dropped, again;  // %1 = x + x, %2 %3 = dropout(%1), %4 = %2 with the mask again
  doubled.name = "aten::add.Tensor";
  doubled.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  captured::Argument alpha;
  alpha.constant = 1;
  doubled.arguments = {value(0), value(0), alpha};
  doubled.results = {1};
  dropped.own = captured::Step::Own::dropout;
  again.own = captured::Step::Own::dropout_apply;
  dropped.probability = again.probability = 0.25;
  dropped.arguments = {value(1)};
  dropped.results = {2, 3};
  again.arguments = {value(2), value(3)};
  again.results = {4};
  const captured::Steps steps{doubled, dropped, again};
  const std::vector<captured::Value> values{number, number, number, mask, number};
  const auto run = [&](std::vector<captured::ValueId> outputs, const at::Tensor& x) {
    const captured::Program program({"the test", steps, values, {0}, std::move(outputs)}, 3, at::kCPU,
                                    MatrixProducts::blas);
    return program.run({x}, RandomKey{.seed = 5});
  };
  const at::Tensor x = at::rand({3, 130}).add(0.5);
  const Tensors held = run({1, 2, 3, 4}, x), dying = run({3, 4}, x);
  CHECK(held[0].equal(x + x));
  CHECK(held[2].equal(dying[0]));
  CHECK(held[3].equal(dying[1]));
  CHECK(held[1].ne(0).equal(held[2]));
  CHECK(held[3].equal(held[1] * (65536.0F / (65536 - 16384))));
  CHECK_FALSE(held[2].all().item<bool>());
}

}  // namespace stagecraft
