#include "base/fence.h"

#include "base/files.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <ranges>
#include <utility>

namespace stagecraft {

struct Fence::Fenced {
  std::filesystem::path folder;
  Look look;
};

namespace {

using FencedPtr = std::shared_ptr<const Fence::Fenced>;

/// Of this process, like its storage.
struct Fences {
  std::mutex mutex;
  std::vector<FencedPtr> all;
};

Fences& fences() {
  static Fences fences;
  return fences;
}

struct Covered {
  FencedPtr fence;  ///< null: none covers the path
  bool aside = false;
};

Covered covered(const std::string& path) {
  const std::scoped_lock lock(fences().mutex);
  if (fences().all.empty()) return {};
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  // The newest of a folder counts.
  for (const FencedPtr& fence : std::views::reverse(fences().all)) {
    const auto [end, at] =
        std::mismatch(fence->folder.begin(), fence->folder.end(), whole.begin(), whole.end());
    if (end != fence->folder.end()) continue;
    const bool aside =
        std::any_of(at, whole.end(), [](const auto& name) { return !named_aside(name.native()).empty(); });
    return {fence, aside};
  }
  return {};
}

std::error_code look(const Covered& at) { return at.fence ? at.fence->look() : std::error_code{}; }

/// Looks before each piece.
class FencedFile final : public StoredFile {
 public:
  FencedFile(StoredFilePtr file, Covered at) : file_(std::move(file)), at_(std::move(at)) {}

  std::error_code read(char* to, std::size_t bytes, std::size_t& got) override {
    return file_->read(to, bytes, got);
  }
  std::error_code read_at(std::uint64_t offset, char* to, std::size_t bytes,
                          std::size_t& got) const override {
    return file_->read_at(offset, to, bytes, got);
  }
  std::error_code write(std::string_view bytes, std::size_t& wrote) override {
    wrote = 0;
    if (const std::error_code unknown = look(at_)) return unknown;
    return file_->write(bytes, wrote);
  }
  std::error_code sync() override { return file_->sync(); }
  std::error_code cut(std::uint64_t bytes) override {
    if (const std::error_code unknown = look(at_)) return unknown;
    return file_->cut(bytes);
  }
  std::error_code set_mode(unsigned mode) override {
    if (const std::error_code unknown = look(at_)) return unknown;
    return file_->set_mode(mode);
  }
  std::error_code facts(FileFacts& facts) override { return file_->facts(facts); }
  std::error_code lock() override { return file_->lock(); }

 private:
  StoredFilePtr file_;
  Covered at_;
};

class FencedStorage final : public Storage {
 public:
  std::error_code open(const std::string& path, OpenFor use, StoredFilePtr& file) override {
    if (use != OpenFor::making && use != OpenFor::appending) return disk().open(path, use, file);
    Covered at = covered(path);
    if (!at.fence || at.aside) return disk().open(path, use, file);
    if (const std::error_code unknown = look(at)) return unknown;
    const std::error_code error = disk().open(path, use, file);
    if (!error) file = std::make_unique<FencedFile>(std::move(file), std::move(at));
    return error;
  }
  std::error_code rename(const std::string& from, const std::string& to) override {
    if (const std::error_code unknown = look(covered(to))) return unknown;
    return disk().rename(from, to);
  }
  std::error_code link(const std::string& from, const std::string& to) override {
    if (const std::error_code unknown = look(covered(to))) return unknown;
    return disk().link(from, to);
  }
  std::error_code remove(const std::string& path) override {
    // Also what has a name aside: it may be the other process's.
    if (const std::error_code unknown = look(covered(path))) return unknown;
    return disk().remove(path);
  }
  std::error_code make_folder(const std::string& path) override {
    const Covered at = covered(path);
    if (at.fence && !at.aside) {
      if (const std::error_code unknown = look(at)) return unknown;
    }
    return disk().make_folder(path);
  }
  std::error_code list(const std::string& path, std::vector<std::string>& names) override {
    return disk().list(path, names);
  }
  std::error_code facts(const std::string& path, bool follow, FileFacts& facts) override {
    return disk().facts(path, follow, facts);
  }
  std::error_code read_link(const std::string& path, std::string& target) override {
    return disk().read_link(path, target);
  }
  std::error_code space(const std::string& path, std::uint64_t& bytes) override {
    return disk().space(path, bytes);
  }

 private:
  static Storage& disk() { return unfenced_storage(); }
};

}  // namespace

Fence::Fence(const std::string& folder, Look look) {
  // Without a slash at its end.
  const std::filesystem::path whole =
      (std::filesystem::absolute(folder) / ".").lexically_normal().parent_path();
  fenced_ = std::make_shared<const Fenced>(Fenced{whole, std::move(look)});
  const std::scoped_lock lock(fences().mutex);
  fences().all.push_back(fenced_);
}

Fence::~Fence() {
  const std::scoped_lock lock(fences().mutex);
  std::erase(fences().all, fenced_);
}

Storage& storage() {
  static FencedStorage fenced;
  return fenced;
}

}  // namespace stagecraft
