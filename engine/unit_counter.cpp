#include "stagecraft/engine/unit_counter.h"

#include <utility>
#include <vector>

namespace stagecraft {

UnitCounter::UnitCounter(const Dataset& data, const Loss& loss, LoaderOptions options)
    : data_(data), loss_(loss), options_(std::move(options)) {}

std::int64_t UnitCounter::of(const MicroBatchRange& range) const {
  const std::vector<std::int64_t> indices = sample_indices(data_, options_, range);
  FieldTensors fields;
  for (const BatchField& field : options_.fields) {
    fields[field.name] = read_field(data_, options_.split, field, indices);
  }
  return loss_.units(fields);
}

}  // namespace stagecraft
