#include "test/support/fake_graphs.h"

#include "base/error.h"
#include "test/support/fake_accelerator.h"
#include "test/support/fake_recorder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace stagecraft::test {
namespace {

using torch::jit::Stack;

thread_local Recorder* current = nullptr;
std::atomic<std::int64_t> taken = 0;

/// Memory that comes back is taken again, newest first, by what it is large enough for.
class PoolMemory {
 public:
  ~PoolMemory() {
    for (const auto& [data, bytes] : blocks_) {
      ::operator delete(data, kAlign);
      taken -= static_cast<std::int64_t>(bytes);
    }
  }
  void* take(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    auto found = free_.lower_bound(bytes);
    if (found == free_.end()) {
      void* const data = ::operator new(bytes, kAlign);
      taken += static_cast<std::int64_t>(bytes);
      blocks_[data] = bytes;
      return data;
    }
    void* const data = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    return data;
  }
  void give(void* data) {
    const std::scoped_lock lock(mutex_);
    free_[blocks_.at(data)].push_back(data);
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::map<void*, std::size_t> blocks_;
};

struct Block {
  std::shared_ptr<PoolMemory> pool;
  void* data;
};

bool on_fake_accelerator(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == fake_accelerator();
}

/// What the CPU sees at the addresses of a tensor, which it does not keep.
at::Tensor seen_at(const at::Tensor& tensor) {
  if (!on_fake_accelerator(tensor)) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
}

template <class Map>
c10::IValue with_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(map(tensor));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      tensors.push_back(tensor ? std::optional(map(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

bool written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

class Recording final : public Recorder {
 public:
  explicit Recording(std::shared_ptr<PoolMemory> memory) : memory_(std::move(memory)) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = memory_->take(std::max<std::size_t>(bytes, 1));
    std::memset(data, 0xFF, bytes);
    return {data, new Block{memory_, data},
            [](void* context) {
              const std::unique_ptr<Block> block(static_cast<Block*>(context));
              block->pool->give(block->data);
            },
            fake_accelerator()};
  }

  void add(const c10::OperatorHandle& op, Stack* stack) override {
    const auto& arguments = op.schema().arguments();
    const Stack given(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end());
    // Once with other values, for the shapes.
    std::map<const at::TensorImpl*, at::Tensor> originals;
    Stack made;
    for (const c10::IValue& value : given) {
      made.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
        if (!on_fake_accelerator(tensor)) return tensor;
        at::Tensor other = at::empty_strided(tensor.sizes(), tensor.strides(),
                                             at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()))
                               .zero_();
        originals[other.unsafeGetTensorImpl()] = tensor;
        return other;
      }));
    }
    const Stack others = made;
    op.callBoxed(&made);
    for (std::size_t i = 0; i < given.size();
         ++i) {  // an output that was made as large as the operator wants
      if (!written(arguments[i]) || !given[i].isTensor() || !on_fake_accelerator(given[i].toTensor()))
        continue;
      const at::Tensor& original = given[i].toTensor();
      if (original.sizes() == others[i].toTensor().sizes()) continue;
      const at::Tensor fresh = at::empty(others[i].toTensor().sizes(), original.options());
      original.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
      original.unsafeGetTensorImpl()->set_sizes_contiguous(fresh.sizes());
    }
    Stack results;
    std::vector<std::pair<std::size_t, at::Tensor>> fresh;  // where the operator's own results go
    for (std::size_t i = 0; i < made.size(); ++i) {
      results.push_back(with_tensors(made[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        if (const auto own = originals.find(tensor.unsafeGetTensorImpl()); own != originals.end())
          return own->second;
        STAGECRAFT_CHECK(made[i].isTensor(), "lists of results are not recorded");
        const at::Tensor result =
            at::empty_strided(tensor.sizes(), tensor.strides(),
                              at::TensorOptions(fake_accelerator()).dtype(tensor.scalar_type()));
        fresh.emplace_back(i, seen_at(result));
        return result;
      }));
    }
    Stack reads;
    std::vector<std::pair<std::size_t, at::Tensor>> writes;
    for (std::size_t i = 0; i < given.size(); ++i) {
      reads.push_back(with_tensors(given[i], seen_at));
      STAGECRAFT_CHECK(!written(arguments[i]) || given[i].isTensor() || given[i].isTensorList(),
                       "what is written is a tensor");
    }
    std::vector<bool> writes_to;
    for (const c10::Argument& argument : arguments) writes_to.push_back(written(argument));
    // As the device does it when nothing is recorded: on copies, then back.
    steps_.emplace_back([op, reads, writes_to, fresh] {
      Stack values;
      for (const c10::IValue& value : reads) {
        values.push_back(with_tensors(
            value, [](const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }));
      }
      const Stack copies = values;
      op.callBoxed(&values);
      for (std::size_t i = 0; i < reads.size(); ++i) {
        if (!writes_to[i]) continue;
        if (reads[i].isTensor()) {
          if (reads[i].toTensor().defined()) reads[i].toTensor().copy_(copies[i].toTensor());
          continue;
        }
        const std::vector<at::Tensor> to = reads[i].toTensorVector(), from = copies[i].toTensorVector();
        for (std::size_t k = 0; k < to.size(); ++k) to[k].copy_(from[k]);
      }
      for (const auto& [i, result] : fresh) result.copy_(values[i].toTensor());
    });
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end());
    stack->insert(stack->end(), results.begin(), results.end());
  }

  void add_copy(const at::Tensor& from, const at::Tensor& to) override {
    if (on_fake_accelerator(from) != on_fake_accelerator(to))
      refuse_while_recording("a copy between the device and the host");
    steps_.emplace_back([from = seen_at(from), to = seen_at(to)] { to.copy_(from); });
  }

  [[nodiscard]] std::vector<std::function<void()>> steps() { return std::move(steps_); }

 private:
  std::shared_ptr<PoolMemory> memory_;
  std::vector<std::function<void()>> steps_;
};

class FakeGraph final : public DeviceGraph {
 public:
  FakeGraph(std::shared_ptr<PoolMemory> memory, std::vector<std::function<void()>> steps)
      : memory_(std::move(memory)), steps_(std::move(steps)) {
    note_device_wide_wait("a recording is made");
  }
  ~FakeGraph() override { note_device_wide_wait("a recording goes"); }
  FakeGraph(const FakeGraph&) = delete;
  FakeGraph& operator=(const FakeGraph&) = delete;
  void launch() override {
    for (const auto& step : steps_) step();
  }

 private:
  std::shared_ptr<PoolMemory> memory_;
  std::vector<std::function<void()>> steps_;
};

class FakeGraphs final : public DeviceGraphs {
 public:
  Pool make_pool() override {
    const std::scoped_lock lock(mutex_);
    pools_.push_back(std::make_shared<PoolMemory>());
    return static_cast<Pool>(pools_.size() - 1);
  }

  std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) override {
    const std::shared_ptr<PoolMemory> memory = [&] {
      const std::scoped_lock lock(mutex_);
      return pools_.at(static_cast<std::size_t>(pool));
    }();
    Recording recording(memory);
    struct Current {
      explicit Current(Recorder* its) { current = its; }
      ~Current() { current = nullptr; }
    };
    {
      const Current now(&recording);
      work();
    }
    return std::make_unique<FakeGraph>(memory, recording.steps());
  }

 private:
  std::mutex mutex_;  // ranks are threads
  std::vector<std::shared_ptr<PoolMemory>> pools_;
};

}  // namespace

Recorder* recorder() { return current; }

void refuse_while_recording(const std::string& what) {
  STAGECRAFT_CHECK(current == nullptr, what + " cannot be recorded");
}

std::shared_ptr<DeviceGraphs> fake_graphs() { return std::make_shared<FakeGraphs>(); }

std::int64_t pool_bytes() { return taken; }

}  // namespace stagecraft::test
