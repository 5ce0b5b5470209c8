#include "test/support/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <unistd.h>

namespace stagecraft::test {
namespace {

std::error_code code(int error) { return {error, std::system_category()}; }

/// splitmix64: the next of a sequence.
std::uint64_t draw(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

}  // namespace

struct SimulatedDisk::Node {
  bool folder = false;
  bool locked = false;
  unsigned owner = ::geteuid(), mode = 0644;
  std::string contents, synced_contents;
  std::map<std::string, NodePtr> entries, synced_entries;
};

/// Where a path leads: its folder (null where that is missing), its name there, and what has the name, if
/// any.
struct SimulatedDisk::Place {
  NodePtr folder;
  std::string name;
  NodePtr node;
};

class SimulatedDisk::Handle final : public StoredFile {
 public:
  Handle(SimulatedDisk& disk, NodePtr node, bool at_end)
      : disk_(disk), node_(std::move(node)), at_end_(at_end) {}
  ~Handle() override {
    const std::scoped_lock lock(disk_.mutex_);
    if (holds_) node_->locked = false;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::error_code read(char* to, std::size_t bytes, std::size_t& got) override {
    const std::scoped_lock lock(disk_.mutex_);
    got = 0;
    if (const std::error_code error = disk_.begin(Call::look)) return error;
    if (node_->folder) return code(EISDIR);
    got = std::min(bytes, node_->contents.size() - std::min(position_, node_->contents.size()));
    std::copy_n(node_->contents.data() + position_, got, to);
    position_ += got;
    return {};
  }
  std::error_code write(std::string_view bytes, std::size_t& wrote) override {
    const std::scoped_lock lock(disk_.mutex_);
    wrote = 0;
    auto how = DiskFault::Kind::none;
    if (const std::error_code error = disk_.begin(Call::write, &how)) return error;
    if (how == DiskFault::Kind::short_write && bytes.size() > 1) bytes = bytes.substr(0, bytes.size() / 2);
    std::string& contents = node_->contents;
    if (at_end_) position_ = contents.size();
    if (contents.size() < position_ + bytes.size()) contents.resize(position_ + bytes.size());
    std::copy(bytes.begin(), bytes.end(), contents.begin() + static_cast<std::ptrdiff_t>(position_));
    if (how == DiskFault::Kind::flipped_write && !bytes.empty()) {
      char& there = contents[position_ + bytes.size() / 2];
      there = static_cast<char>(there ^ 1);
    }
    position_ += wrote = bytes.size();
    return {};
  }
  std::error_code read_at(std::uint64_t offset, char* to, std::size_t bytes,
                          std::size_t& got) const override {
    const std::scoped_lock lock(disk_.mutex_);
    got = 0;
    if (const std::error_code error = disk_.begin(Call::look)) return error;
    const std::string& contents = node_->contents;
    if (offset >= contents.size()) return {};
    got = std::min<std::size_t>(bytes, contents.size() - offset);
    std::copy_n(contents.begin() + static_cast<std::ptrdiff_t>(offset), got, to);
    return {};
  }
  std::error_code sync() override {
    const std::scoped_lock lock(disk_.mutex_);
    if (const std::error_code error = disk_.begin(Call::change)) return error;
    if (disk_.forgetful_) return {};
    node_->synced_contents = node_->contents;
    node_->synced_entries = node_->entries;
    return {};
  }
  std::error_code cut(std::uint64_t bytes) override {
    const std::scoped_lock lock(disk_.mutex_);
    if (const std::error_code error = disk_.begin(Call::change)) return error;
    node_->contents.resize(bytes);
    return {};
  }
  std::error_code set_mode(unsigned mode) override {
    const std::scoped_lock lock(disk_.mutex_);
    if (const std::error_code error = disk_.begin(Call::change)) return error;
    node_->mode = mode;
    return {};
  }
  std::error_code facts(FileFacts& facts) override {
    const std::scoped_lock lock(disk_.mutex_);
    if (const std::error_code error = disk_.begin(Call::look)) return error;
    facts = facts_of(*node_);
    return {};
  }
  std::error_code lock() override {
    const std::scoped_lock lock(disk_.mutex_);
    if (const std::error_code error = disk_.begin(Call::look)) return error;
    if (!disk_.locks_) return code(ENOLCK);
    if (node_->locked && disk_.locks_hold_) return code(EWOULDBLOCK);
    holds_ = node_->locked = true;
    return {};
  }

  static FileFacts facts_of(const Node& node) {
    FileFacts facts;
    facts.kind = node.folder ? FileFacts::Kind::folder : FileFacts::Kind::file;
    facts.bytes = node.contents.size();
    facts.mode = node.mode;
    facts.owner = node.owner;
    facts.identity = reinterpret_cast<std::uintptr_t>(&node);
    return facts;
  }

 private:
  SimulatedDisk& disk_;
  NodePtr node_;
  bool at_end_;
  bool holds_ = false;
  std::size_t position_ = 0;
};

SimulatedDisk::SimulatedDisk() : root_(std::make_shared<Node>()) { root_->folder = true; }
SimulatedDisk::~SimulatedDisk() = default;

SimulatedDisk::NodePtr SimulatedDisk::copied(const NodePtr& node, std::map<const Node*, NodePtr>& done) {
  NodePtr& copy = done[node.get()];
  if (copy != nullptr) return copy;
  copy = std::make_shared<Node>(*node);
  copy->locked = false;
  const NodePtr made = copy;  // `done` grows below
  for (auto& [name, entry] : made->entries) entry = copied(entry, done);
  for (auto& [name, entry] : made->synced_entries) entry = copied(entry, done);
  return made;
}

std::unique_ptr<SimulatedDisk> SimulatedDisk::copy() const {
  const std::scoped_lock lock(mutex_);
  auto other = std::make_unique<SimulatedDisk>();
  std::map<const Node*, NodePtr> done;
  other->root_ = copied(root_, done);
  return other;
}

namespace {

void append_number(std::string& image, std::uint64_t number) {
  image.append(reinterpret_cast<const char*>(&number), sizeof(number));
}
void append_text(std::string& image, const std::string& text) {
  append_number(image, text.size());
  image += text;
}

}  // namespace

/// A node that has several names comes once; its number follows from then on.
void SimulatedDisk::append(std::string& image, const NodePtr& node,
                           std::map<const Node*, std::uint64_t>& done) {
  const auto [place, fresh] = done.try_emplace(node.get(), done.size());
  append_number(image, place->second);
  if (!fresh) return;
  append_number(image, node->folder ? 1 : 0);
  append_number(image, node->owner);
  append_number(image, node->mode);
  append_text(image, node->contents);
  append_text(image, node->synced_contents);
  for (const auto* entries : {&node->entries, &node->synced_entries}) {
    append_number(image, entries->size());
    for (const auto& [name, entry] : *entries) {
      append_text(image, name);
      append(image, entry, done);
    }
  }
}

struct SimulatedDisk::ImageReader {
  const std::string& image;
  std::size_t at = 0;
  std::vector<NodePtr> nodes{};

  std::uint64_t number() {
    std::uint64_t number = 0;
    std::memcpy(&number, image.data() + at, sizeof(number));
    at += sizeof(number);
    return number;
  }
  std::string text() {
    const std::size_t size = number();
    at += size;
    return image.substr(at - size, size);
  }
  NodePtr node() {
    const std::size_t place = number();
    if (place < nodes.size()) return nodes[place];
    const NodePtr made = nodes.emplace_back(std::make_shared<Node>());
    made->folder = number() != 0;
    made->owner = static_cast<unsigned>(number());
    made->mode = static_cast<unsigned>(number());
    made->contents = text();
    made->synced_contents = text();
    for (auto* entries : {&made->entries, &made->synced_entries}) {
      for (std::size_t left = number(); left > 0; --left) {
        const std::string name = text();
        (*entries)[name] = node();
      }
    }
    return made;
  }
};

std::string SimulatedDisk::image() const {
  const std::scoped_lock lock(mutex_);
  std::string image;
  std::map<const Node*, std::uint64_t> done;
  append(image, root_, done);
  return image;
}

std::unique_ptr<SimulatedDisk> SimulatedDisk::from_image(const std::string& image) {
  auto disk = std::make_unique<SimulatedDisk>();
  disk->root_ = ImageReader{image}.node();
  return disk;
}

void SimulatedDisk::set_fault(const DiskFault& fault) {
  const std::scoped_lock lock(mutex_);
  fault_ = fault;
  setter_ = std::this_thread::get_id();
  calls_ = 0;
  dead_ = false;
}

std::int64_t SimulatedDisk::calls() const {
  const std::scoped_lock lock(mutex_);
  return calls_;
}

std::error_code SimulatedDisk::begin(Call call, DiskFault::Kind* how) {
  while (hangs_ || (stopped_ && std::this_thread::get_id() != working_)) never_.wait(mutex_);
  if (dead_) return code(EIO);
  if (fault_.on_other_threads && std::this_thread::get_id() == setter_) return {};
  if (call < fault_.counted) return {};
  if (calls_++ != fault_.call) return {};
  switch (fault_.kind) {
    case DiskFault::Kind::none:
      return {};
    case DiskFault::Kind::error:
      return code(fault_.error);
    case DiskFault::Kind::short_write:
    case DiskFault::Kind::flipped_write:
      if (how != nullptr) *how = fault_.kind;
      return {};
    case DiskFault::Kind::power_cut:
      dead_ = true;
      return code(EIO);
    case DiskFault::Kind::hang_all:
      hangs_ = true;
      [[fallthrough]];
    case DiskFault::Kind::hang:
      for (;;) never_.wait(mutex_);
    case DiskFault::Kind::stopped: {
      const std::function<void()> meanwhile = fault_.meanwhile;
      stopped_ = true;
      working_ = std::this_thread::get_id();
      mutex_.unlock();
      meanwhile();
      mutex_.lock();
      stopped_ = false;
      never_.notify_all();
      return {};
    }
  }
  return {};
}

/// What is left of a folder's entries and a file's contents, each decided by itself.
void SimulatedDisk::settle(Node& node, std::uint64_t& random) {
  std::set<std::string> names;
  for (const auto* entries : {&node.entries, &node.synced_entries}) {
    for (const auto& [name, entry] : *entries) names.insert(name);
  }
  std::map<std::string, NodePtr> left;
  std::map<const Node*, std::string> names_of_folders;
  for (const std::string& name : names) {
    const auto& chosen = draw(random) % 2 == 0 ? node.entries : node.synced_entries;
    const auto entry = chosen.find(name);
    if (entry == chosen.end()) continue;
    left.insert(*entry);
    if (!entry->second->folder) continue;
    // Half of a rename: files may keep both names, folders have one.
    const auto [other, first] = names_of_folders.try_emplace(entry->second.get(), name);
    if (!first) left.erase(draw(random) % 2 == 0 ? name : other->second);
  }
  node.entries = node.synced_entries = left;
  const std::string& before = node.synced_contents;
  if (node.contents != before) {
    const std::size_t grown = node.contents.size() - std::min(node.contents.size(), before.size());
    switch (draw(random) % 4) {
      case 0:
        node.contents = before;
        break;
      case 1:  // torn
        if (grown > 0) node.contents.resize(before.size() + draw(random) % grown);
        break;
      case 2:  // its length is there, its bytes are not
        if (grown > 0)
          std::fill(node.contents.end() - static_cast<std::ptrdiff_t>(grown), node.contents.end(), '\0');
        break;
      default:
        break;
    }
    node.synced_contents = node.contents;
  }
  for (auto& [name, entry] : node.entries) settle(*entry, random);
}

void SimulatedDisk::restart(std::uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  settle(*root_, seed);
  fault_ = {};
  calls_ = 0;
  dead_ = false;
}

SimulatedDisk::Place SimulatedDisk::place_of(const std::string& said) const {
  const auto& [folder, point] = mounted_;
  const bool elsewhere = !point.empty() && said.starts_with(point + "/");
  const std::string path = elsewhere ? folder + said.substr(point.size()) : said;
  Place place{nullptr, "", root_};
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() || name == ".") continue;
    if (place.node == nullptr || !place.node->folder) return {};
    const auto found = place.node->entries.find(name);
    place = {place.node, name, found == place.node->entries.end() ? nullptr : found->second};
  }
  return place;
}

std::error_code SimulatedDisk::open(const std::string& path, OpenFor use, StoredFilePtr& file) {
  const std::scoped_lock lock(mutex_);
  Place place = place_of(path);
  const bool makes = use == OpenFor::making || use == OpenFor::appending || use == OpenFor::locking;
  if (const std::error_code error = begin(makes && place.node == nullptr ? Call::change : Call::look))
    return error;
  if (place.node == nullptr && (!makes || place.folder == nullptr)) return code(ENOENT);
  if (place.node != nullptr && use == OpenFor::making) return code(EEXIST);
  if (place.node != nullptr && place.node->folder && makes) return code(EISDIR);
  if (place.node == nullptr) {
    place.node = place.folder->entries[place.name] = std::make_shared<Node>();
  }
  file = std::make_unique<Handle>(*this, place.node, use == OpenFor::appending);
  return {};
}

std::error_code SimulatedDisk::rename(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::change)) return error;
  const Place source = place_of(from), target = place_of(to);
  if (source.node == nullptr || target.folder == nullptr) return code(ENOENT);
  if (target.node != nullptr && target.node->folder && !target.node->entries.empty()) return code(ENOTEMPTY);
  source.folder->entries.erase(source.name);
  target.folder->entries[target.name] = source.node;
  return {};
}

std::error_code SimulatedDisk::link(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::change)) return error;
  const Place source = place_of(from), target = place_of(to);
  if (source.node == nullptr || target.folder == nullptr) return code(ENOENT);
  if (target.node != nullptr) return code(EEXIST);
  target.folder->entries[target.name] = source.node;
  return {};
}

std::error_code SimulatedDisk::remove(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::change)) return error;
  const Place place = place_of(path);
  if (place.node == nullptr) return code(ENOENT);
  if (!place.node->entries.empty()) return code(ENOTEMPTY);
  place.folder->entries.erase(place.name);
  return {};
}

std::error_code SimulatedDisk::make_folder(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::change)) return error;
  const Place place = place_of(path);
  if (place.node != nullptr) return code(EEXIST);
  if (place.folder == nullptr) return code(ENOENT);
  const NodePtr made = place.folder->entries[place.name] = std::make_shared<Node>();
  made->folder = true;
  return {};
}

std::error_code SimulatedDisk::list(const std::string& path, std::vector<std::string>& names) {
  const std::scoped_lock lock(mutex_);
  names.clear();
  if (const std::error_code error = begin(Call::look)) return error;
  const Place place = place_of(path);
  if (place.node == nullptr) return code(ENOENT);
  if (!place.node->folder) return code(ENOTDIR);
  for (const auto& [name, entry] : place.node->entries) names.push_back(name);
  return {};
}

std::error_code SimulatedDisk::facts(const std::string& path, bool /*follow*/, FileFacts& facts) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::look)) return error;
  const Place place = place_of(path);
  if (place.node == nullptr) return code(ENOENT);
  facts = Handle::facts_of(*place.node);
  return {};
}

std::error_code SimulatedDisk::read_link(const std::string& /*path*/, std::string& /*target*/) {
  return code(EINVAL);
}

std::error_code SimulatedDisk::space(const std::string& /*path*/, std::uint64_t& bytes) {
  const std::scoped_lock lock(mutex_);
  if (const std::error_code error = begin(Call::look)) return error;
  bytes = space_;
  return {};
}

void SimulatedDisk::write(const std::string& path, const std::string& contents) {
  const std::scoped_lock lock(mutex_);
  NodePtr node = root_;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    node->folder = true;
    NodePtr& next = node->entries[name];
    if (next == nullptr) next = std::make_shared<Node>();
    node->synced_entries[name] = next;
    node = next;
  }
  node->contents = node->synced_contents = contents;
}

void SimulatedDisk::set_owner(const std::string& path, unsigned owner) {
  const std::scoped_lock lock(mutex_);
  place_of(path).node->owner = owner;
}

void SimulatedDisk::set_mode(const std::string& path, unsigned mode) {
  const std::scoped_lock lock(mutex_);
  place_of(path).node->mode = mode;
}

unsigned SimulatedDisk::mode(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  return place_of(path).node->mode;
}

std::string SimulatedDisk::read(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  const Place place = place_of(path);
  return place.node == nullptr ? "" : place.node->contents;
}

void SimulatedDisk::collect(const Node& node, const std::string& path, std::vector<std::string>& found) {
  if (!node.folder) return found.push_back(path);
  if (node.entries.empty()) found.push_back(path + "/");
  for (const auto& [name, entry] : node.entries) collect(*entry, path + "/" + name, found);
}

std::vector<std::string> SimulatedDisk::files() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> found;
  collect(*root_, "", found);
  return found;
}

}  // namespace stagecraft::test
