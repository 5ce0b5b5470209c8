#pragma once

// Profiles for properties: random layers with whole numbers, so that sums are exact.

#include "partitioner/plan/profile.h"

namespace stagecraft::test {

/// A layer with every kind of behaviour drawn by RapidCheck. Call within a property.
[[nodiscard]] LayerProfile random_layer(int index);
[[nodiscard]] Measurement random_measurement(int layers);

/// Makes a layer one without a trained weight and without any before it: its forward alone is left.
void freeze(LayerProfile& layer);

/// Lets trained layers share weights, up to two; each gets as many parameters as it has to have.
void share_weights(Profile& profile);
/// Lets some layers read a field of the batch.
void read_fields(Measurement& measurement);

/// A layer of plain figures: `work` seconds in all (a third forward), `output` bytes, nothing kept.
[[nodiscard]] LayerProfile plain_layer(int index, double work, std::int64_t output);

}  // namespace stagecraft::test
