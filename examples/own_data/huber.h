#pragma once

// A loss of one's own: {"type": "huber", "delta": 0.5}, squared near 0 and linear beyond delta (Huber, "Robust
// Estimation of a Location Parameter", 1964).

#include <memory>
#include <stagecraft/engine.h>

struct HuberSettings {
  double delta = 1;
};
void describe(stagecraft::Fields& f, HuberSettings& s);

std::shared_ptr<const stagecraft::Loss> make_huber(const HuberSettings& s, stagecraft::Reduction reduction);
