#include "base/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace stagecraft {
namespace {

std::atomic<bool> frozen = false;

/// Finds out whether a description has any field.
class FieldCounter final : public Fields {
 public:
  int fields = 0;
  void require(bool, const char*, const std::string&) override {}
  void registered(const char*, AnyNamed&, const char*, const char*) override { ++fields; }

 protected:
  void field(const char*, const FieldRef&, bool, const char*, const json::Range&) override { ++fields; }
};

}  // namespace

void freeze_registries() { frozen = true; }
bool registries_frozen() { return frozen; }

std::vector<std::string> AnyRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry->name);
  return names;
}

std::shared_ptr<const AnyEntry> AnyRegistry::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry->name == name; });
  return found == entries_.end() ? nullptr : *found;
}

std::shared_ptr<const AnyEntry> AnyRegistry::of(std::type_index settings) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry->settings == settings; });
  STAGECRAFT_CHECK(found != entries_.end(),
                   fmt::format("no {} is registered with settings {}", what_, settings.name()));
  return *found;
}

bool AnyRegistry::names_only() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    FieldCounter counter;
    const std::shared_ptr<void> settings = entry->copy(nullptr);
    entry->describe(counter, settings.get());
    return counter.fields == 0;
  });
}

void AnyRegistry::add_entry(std::shared_ptr<const AnyEntry> entry) {
  const std::string at = fmt::format("{} \"{}\": ", what_, entry->name);
  STAGECRAFT_CHECK(!frozen || adds_built_in_, at + "register it before run_command_line()");
  STAGECRAFT_CHECK(!entry->name.empty(), fmt::format("a {} needs a name", what_));
  STAGECRAFT_CHECK(find(entry->name) == nullptr, at + "the name is taken");
  for (const auto& other : entries_) {
    STAGECRAFT_CHECK(
        other->settings != entry->settings,
        fmt::format("{}\"{}\" has settings of the same type; give each its own", at, other->name));
  }
  entries_.push_back(std::move(entry));
}

std::shared_ptr<void> AnyNamed::settings_for(const AnyEntry& entry) const {
  return entry.copy(&entry == entry_.get() ? settings_.get() : nullptr);
}

void AnyNamed::set(std::shared_ptr<const AnyEntry> entry, std::shared_ptr<const void> settings) {
  entry_ = std::move(entry);
  settings_ = std::move(settings);
}

}  // namespace stagecraft
