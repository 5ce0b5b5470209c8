#include "engine/records/settings/loss_scale.h"

#include "base/error.h"
#include "test/support/catch.h"

using namespace stagecraft;

TEST_CASE("a dynamic loss scale halves on overflow and doubles after a window", "[loss_scale]") {
  LossScale scale({.enabled = true, .initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2});
  CHECK(scale.value() == 16);
  scale.update(true);  // one overflow is forgiven
  CHECK(scale.value() == 16);
  scale.update(true);
  CHECK(scale.value() == 8);
  for (const double expected : {8, 8, 16}) {
    scale.update(false);
    CHECK(scale.value() == expected);
  }
  scale.update(false);
  scale.update(false);
  scale.update(true);  // the window begins anew, and so did patience when the scale grew
  for (const double expected : {16, 16, 32}) {
    scale.update(false);
    CHECK(scale.value() == expected);
  }
}

TEST_CASE("a loss scale goes on from its state", "[loss_scale]") {
  const Fp16Config config{.enabled = true, .loss_scale_window = 5};
  LossScale a(config), b(config);
  for (const bool overflow : {true, true, false, false, false}) a.update(overflow);
  b.set_state(a.state());
  for (const bool overflow : {false, false, true, false, true}) {
    a.update(overflow);
    b.update(overflow);
    CHECK(a.value() == b.value());
  }
}

TEST_CASE("an overflow at the least scale ends the run", "[loss_scale]") {
  LossScale scale({.enabled = true, .initial_scale_power = 1, .hysteresis = 1, .min_loss_scale = 1});
  scale.update(true);
  CHECK(scale.value() == 1);
  CHECK_THROWS_AS(scale.update(true), InputError);
}

TEST_CASE("a fixed loss scale stays", "[loss_scale]") {
  LossScale scale({.enabled = true, .loss_scale = 128, .hysteresis = 1});
  for (int i = 0; i < 3000; ++i) scale.update(i % 3 == 0);
  CHECK(scale.value() == 128);
}

TEST_CASE("a fixed loss scale that always overflows ends the run", "[loss_scale]") {
  LossScale scale({.enabled = true, .loss_scale = 128});
  for (int i = 0; i < 99; ++i) scale.update(true);
  scale.update(false);
  for (int i = 0; i < 99; ++i) CHECK_NOTHROW(scale.update(true));
  CHECK_THROWS_WITH(scale.update(true), Catch::Matchers::ContainsSubstring("100 steps in a row") &&
                                            Catch::Matchers::ContainsSubstring("fp16.loss_scale 128"));
}
