#pragma once

// Registries: the kinds of layers, model families, data sets, losses, optimizers and learning rates that a
// config may name. The built-in ones and those of a program that links Stagecraft enter by the same door:
//
//   layers().add<RmsNormSettings>("rms_norm", make_rms_norm);
//
// A kind says what is made and what it is made from:
//
//   struct LayerKind {
//     using Site = LayerSite;       // where it is to stand
//     using Product = LayerPtr;     // what `make` returns
//     static constexpr const char* kWhat = "layer";
//     static Registry<LayerKind>& registry();
//   };
//
// Not thread-safe: register everything first, at the start of main(). run_command_line() freezes all
// registries, so all later reading needs no lock.

#include "base/error.h"
#include "base/fields.h"

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

namespace stagecraft {

/// One registered type, as far as reading and writing its settings goes.
struct AnyEntry {
  std::string name;  ///< in configs
  std::string doc;   ///< one line for the schema; empty: what the schema says of the key
  std::type_index settings;
  std::function<std::shared_ptr<void>(const void*)> copy;  ///< of settings; of null: the default ones
  std::function<void(Fields&, void*)> describe;
  /// Keys that say where data lies and not what it is: a run may be resumed with other values.
  std::vector<std::string> location_keys;
  bool built_in = false;  ///< comes with Stagecraft, not with a program that links it
};

class AnyRegistry {
 public:
  [[nodiscard]] const std::vector<std::shared_ptr<const AnyEntry>>& entries() const { return entries_; }
  [[nodiscard]] std::vector<std::string> names() const;
  /// Null where there is none of that name.
  [[nodiscard]] std::shared_ptr<const AnyEntry> find(std::string_view name) const;
  /// Throws InternalError where nobody registered these settings.
  [[nodiscard]] std::shared_ptr<const AnyEntry> of(std::type_index settings) const;

  /// No entry has keys of its own: a name says everything.
  [[nodiscard]] bool names_only() const;

 protected:
  explicit AnyRegistry(const char* what) : what_(what) {}
  /// Throws InternalError: the name or the settings are taken, or registries are frozen.
  void add_entry(std::shared_ptr<const AnyEntry> entry);

 private:
  const char* what_;  ///< "layer"
  std::vector<std::shared_ptr<const AnyEntry>> entries_;

 protected:
  bool adds_built_in_ = false;  ///< also after the freeze: a registry is made when it is first asked for
};

/// From here on nothing can be registered. Called by run_command_line().
void freeze_registries();
[[nodiscard]] bool registries_frozen();

template <class Kind>
class Registry : public AnyRegistry {
 public:
  struct Entry : AnyEntry {
    std::function<typename Kind::Product(const void*, const typename Kind::Site&)> make;
  };

  /// `add_built_in(Registry&)` adds what every program has.
  template <class AddBuiltIn>
  explicit Registry(const AddBuiltIn& add_built_in) : AnyRegistry(Kind::kWhat) {
    extend(add_built_in);
  }
  /// More that every program has, from a room above the one that makes this registry.
  template <class AddBuiltIn>
  void extend(const AddBuiltIn& add_built_in) {
    adds_built_in_ = true;
    add_built_in(*this);
    adds_built_in_ = false;
  }

  /// What a type may have besides its name, its settings and what makes it.
  struct More {
    std::string doc{};
    std::vector<std::string> location_keys{};
  };
  /// `make` is called with (const Settings&, const Kind::Site&). Settings have a default constructor and a
  /// `describe(Fields&, Settings&)`.
  template <class Settings, class Make>
  void add(std::string name, Make make, More more = {}) {
    add_entry(std::make_shared<Entry>(
        Entry{{std::move(name), std::move(more.doc), typeid(Settings),
               [](const void* from) -> std::shared_ptr<void> {
                 return from == nullptr ? std::make_shared<Settings>()
                                        : std::make_shared<Settings>(*static_cast<const Settings*>(from));
               },
               [](Fields& fields, void* settings) { describe(fields, *static_cast<Settings*>(settings)); },
               std::move(more.location_keys), adds_built_in_},
              [make = std::move(make)](const void* settings, const typename Kind::Site& site) {
                return make(*static_cast<const Settings*>(settings), site);
              }}));
  }
};

/// A registered type with its settings: a value, cheap to copy.
class AnyNamed {
 public:
  [[nodiscard]] const std::string& name() const { return entry_->name; }
  [[nodiscard]] const AnyEntry& entry() const { return *entry_; }
  [[nodiscard]] virtual const AnyRegistry& registry() const = 0;

  /// A copy of the settings, to be changed and then set: those of `entry`, which are its defaults unless it is
  /// the one chosen now.
  [[nodiscard]] std::shared_ptr<void> settings_for(const AnyEntry& entry) const;
  void set(std::shared_ptr<const AnyEntry> entry, std::shared_ptr<const void> settings);

  template <class Settings>
  [[nodiscard]] const Settings* get_if() const {
    return entry_->settings == typeid(Settings) ? static_cast<const Settings*>(settings_.get()) : nullptr;
  }

 protected:
  AnyNamed(std::shared_ptr<const AnyEntry> entry, std::shared_ptr<const void> settings)
      : entry_(std::move(entry)), settings_(std::move(settings)) {}
  AnyNamed(const AnyNamed&) = default;
  AnyNamed(AnyNamed&&) = default;
  AnyNamed& operator=(const AnyNamed&) = default;
  AnyNamed& operator=(AnyNamed&&) = default;
  ~AnyNamed() = default;

  std::shared_ptr<const AnyEntry> entry_;
  std::shared_ptr<const void> settings_;
};

template <class Kind>
class Named final : public AnyNamed {
 public:
  /// The first that was registered, with its defaults.
  Named() : Named(Kind::registry().entries().front()) {}
  /// Settings of a registered type, as in `LayerSpec{LinearSpec{10}}`.
  template <class Settings>
  requires(!std::derived_from<std::remove_cvref_t<Settings>, AnyNamed>)
      Named(Settings settings)  // NOLINT: a value of the kind
      : AnyNamed(Kind::registry().of(typeid(Settings)), std::make_shared<Settings>(std::move(settings))) {}

  [[nodiscard]] const AnyRegistry& registry() const override { return Kind::registry(); }
  [[nodiscard]] typename Kind::Product make(const typename Kind::Site& site) const {
    return static_cast<const typename Registry<Kind>::Entry&>(*entry_).make(settings_.get(), site);
  }

 private:
  explicit Named(const std::shared_ptr<const AnyEntry>& entry) : AnyNamed(entry, entry->copy(nullptr)) {}
};

}  // namespace stagecraft
