#include "stagecraft/models/data/dataset.h"

#include "stagecraft/models/data/idx.h"
#include "stagecraft/models/data/synthetic.h"
#include "stagecraft/models/data/text.h"

namespace stagecraft {

Registry<DatasetKind>& DatasetKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<DatasetKind>([](Registry<DatasetKind>& added) {
    const auto path = [](const InputPlace& data) { return InputPlace{data.file, data.pointer + "/path"}; };
    added.add<IdxDataConfig>(
        "idx", [=](const IdxDataConfig& c, const InputPlace& data) { return open_idx(c, path(data)); },
        {.location_keys = {"path"}});
    added.add<TextDataConfig>(
        "text", [=](const TextDataConfig& c, const InputPlace& data) { return open_text(c, path(data)); },
        {.location_keys = {"path"}});
    added.add<SyntheticDataConfig>("synthetic", open_synthetic);
  });
  return all;
}

void describe(Fields& f, DataConfig& c) {
  f.registered("type", c.source, "idx, text or synthetic");
  f.optional("shuffle", c.shuffle, "a new order every epoch, by (seed, epoch)");
  f.optional("drop_last", c.drop_last, "leave out an epoch's last, short mini-batch");
}

std::unique_ptr<Dataset> open_dataset(const DataConfig& config, const InputPlace& place) {
  return config.source.make(place);
}

}  // namespace stagecraft
