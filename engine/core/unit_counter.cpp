#include "engine/core/unit_counter.h"

#include <utility>
#include <vector>

namespace stagecraft {

UnitCounter::UnitCounter(const Dataset& data, const Loss& loss, LoaderOptions options)
    : data_(data), loss_(loss), options_(std::move(options)), order_(order_of(data, options_)) {}

std::int64_t UnitCounter::of(const MicroBatchRange& range) const {
  const std::vector<std::int64_t> indices = order_.samples(range);
  return loss_.units(read_fields(data_, options_.split, options_.fields, indices));
}

}  // namespace stagecraft
