// Which calls of CUDA wait for a kernel that does not end, and which streams stand behind one that waits. The
// engine's rules about transfers that are under way (docs/design/gpu.md) rest on the answers.
//
//   nvcc -arch=sm_90 probe.cu -lcublas -o probe && CUDA_MODULE_LOADING=LAZY ./probe
//
// Each call is made while one block spins on a stream of its own, as an NCCL receive does whose sender has not
// come. A thread ends the spin after kPatience: a call that came back only then waited for it. Prints a line
// per call. Exit code 77: no device.

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPatience{700};

void must(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must(call, #call)

/// In memory that host and device both see.
struct Signal {
  volatile int began, end;
};

__global__ void spin(Signal* signal) {
  signal->began = 1;
  __threadfence_system();
  while (signal->end == 0) {
  }
}
__global__ void touch(int* p) {
  if (p != nullptr) *p = 1;
}
/// A kernel of its own per N, which nobody has launched before.
template <int N>
__global__ void fresh(float* p) {
  p[threadIdx.x] = p[threadIdx.x] * N + N;
}

cudaStream_t new_stream() {
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

class Probe {
 public:
  Probe() : spinning_(new_stream()) {
    MUST(cudaHostAlloc(reinterpret_cast<void**>(&signal_), sizeof(Signal), cudaHostAllocMapped));
    run("(a first round)", [] {}, /*say=*/false);  // loads what the probe itself needs
  }

  /// `call` beside the spinning block.
  void run(const char* name, const std::function<void()>& call, bool say = true) {
    signal_->began = signal_->end = 0;
    spin<<<1, 1, 0, spinning_>>>(signal_);
    while (signal_->began == 0) {
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool back = false;
    std::thread release([&] {
      std::unique_lock<std::mutex> lock(mutex);
      (void)changed.wait_for(lock, kPatience, [&] { return back; });
      signal_->end = 1;
    });
    const auto begin = Clock::now();
    call();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    {
      const std::lock_guard<std::mutex> lock(mutex);
      back = true;
    }
    changed.notify_one();
    release.join();
    MUST(cudaStreamSynchronize(spinning_));
    if (!say) return;
    const bool waited = ms > 0.9 * static_cast<double>(kPatience.count());
    waited_ += waited ? 1 : 0;
    ++calls_;
    std::printf("%-40s %9.3f ms  %s\n", name, ms, waited ? "WAITED for the spinning block" : "went on");
    std::fflush(stdout);
  }

  /// Of `count` streams the first waits for the spinning block: how many of the others stand still?
  void queues(int count) {
    std::vector<cudaStream_t> streams;
    std::vector<cudaEvent_t> ends(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) streams.push_back(new_stream());
    for (cudaEvent_t& end : ends) MUST(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    MUST(cudaDeviceSynchronize());
    int still = 0;
    bool null_stream = false;
    const auto launch = [&] {
      cudaEvent_t spun;
      MUST(cudaEventCreateWithFlags(&spun, cudaEventDisableTiming));
      MUST(cudaEventRecord(spun, spinning_));
      MUST(cudaStreamWaitEvent(streams[0], spun, 0));
      for (std::size_t i = 1; i < streams.size(); ++i) {
        touch<<<1, 1, 0, streams[i]>>>(nullptr);
        MUST(cudaEventRecord(ends[i], streams[i]));
      }
      touch<<<1, 1>>>(nullptr);
      MUST(cudaEventRecord(ends[0], nullptr));
      std::this_thread::sleep_for(kPatience / 3);
      for (std::size_t i = 1; i < ends.size(); ++i) still += cudaEventQuery(ends[i]) == cudaErrorNotReady ? 1 : 0;
      null_stream = cudaEventQuery(ends[0]) == cudaErrorNotReady;
      (void)cudaGetLastError();
      MUST(cudaEventDestroy(spun));
    };
    run("", launch, /*say=*/false);
    const char* const asked = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    std::printf("%3d streams, CUDA_DEVICE_MAX_CONNECTIONS %-8s %d stand behind the one that waits; the null stream %s\n",
                count, asked != nullptr ? asked : "not set,", still, null_stream ? "too" : "goes on");
    std::fflush(stdout);
    for (cudaStream_t stream : streams) MUST(cudaStreamDestroy(stream));
    for (cudaEvent_t end : ends) MUST(cudaEventDestroy(end));
  }

  void sum() const {
    const char* const loading = std::getenv("CUDA_MODULE_LOADING");
    std::printf("CUDA_MODULE_LOADING %s: %d of %d calls waited\n", loading != nullptr ? loading : "not set", waited_,
                calls_);
  }

 private:
  cudaStream_t spinning_;
  Signal* signal_ = nullptr;
  int waited_ = 0, calls_ = 0;
};

void blas_must(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::printf("FAILED: %s: %s\n", call, cublasGetStatusString(status));
  std::exit(1);
}

/// In the order in which a rank's first step makes them.
void calls(Probe& probe) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const cudaStream_t other = new_stream();
  float* numbers;
  MUST(cudaMalloc(&numbers, 1024 * sizeof(float)));
  touch<<<1, 1>>>(nullptr);
  MUST(cudaDeviceSynchronize());
  probe.run("a kernel that was launched before", [] { touch<<<1, 1>>>(nullptr); });
  probe.run("a kernel's first launch", [&] { fresh<1><<<1, 32, 0, other>>>(numbers); });
  cudaEvent_t event;
  probe.run("cudaEventCreate, Record, Query", [&] {
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(cudaEventRecord(event, other));
    (void)cudaEventQuery(event);
    (void)cudaGetLastError();
  });
  probe.run("cudaStreamCreate", [] { (void)new_stream(); });
  void *small = nullptr, *large = nullptr, *pinned = nullptr;
  probe.run("cudaMalloc, 64 MiB", [&] { MUST(cudaMalloc(&small, 64 * kMiB)); });
  probe.run("cudaMalloc, 2 GiB", [&] { MUST(cudaMalloc(&large, 2048 * kMiB)); });
  probe.run("cudaHostAlloc, 64 MiB", [&] { MUST(cudaHostAlloc(&pinned, 64 * kMiB, 0)); });
  probe.run("cudaMemcpyAsync from pinned memory", [&] {
    MUST(cudaMemcpyAsync(small, pinned, kMiB, cudaMemcpyHostToDevice, other));
  });
  probe.run("cudaMemGetInfo", [] {
    std::size_t available, total;
    MUST(cudaMemGetInfo(&available, &total));
  });
  cublasHandle_t blas;
  probe.run("cublasCreate", [&] { blas_must(cublasCreate(&blas), "cublasCreate"); });
  probe.run("a product's first launch (cublasSgemm)", [&] {
    constexpr int kSize = 1024;
    const float one = 1;
    auto* const m = static_cast<float*>(large);
    blas_must(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one, m, kSize, m + kMiB, kSize, &one,
                          m + 2 * kMiB, kSize),
              "cublasSgemm");
  });
  cudaGraph_t graph;
  cudaGraphExec_t recording;
  probe.run("capture of 50 launches", [&] {
    MUST(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 50; ++i) fresh<1><<<1, 32, 0, other>>>(numbers);
    MUST(cudaStreamEndCapture(other, &graph));
  });
  probe.run("cudaGraphInstantiate", [&] { MUST(cudaGraphInstantiate(&recording, graph, 0)); });
  probe.run("cudaGraphLaunch, first", [&] { MUST(cudaGraphLaunch(recording, other)); });
  probe.run("cudaGraphExecDestroy", [&] { MUST(cudaGraphExecDestroy(recording)); });
  probe.run("cudaFreeHost", [&] { MUST(cudaFreeHost(pinned)); });
  probe.run("cudaFree", [&] { MUST(cudaFree(small)); });
  // Known to wait: says that the probe sees it.
  probe.run("cudaDeviceSynchronize (must wait)", [] { MUST(cudaDeviceSynchronize()); });
}

}  // namespace

int main() {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::printf("no device: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
    return 77;
  }
  cudaDeviceProp facts;
  MUST(cudaGetDeviceProperties(&facts, 0));
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", facts.name, facts.major, facts.minor,
              facts.multiProcessorCount);
  Probe probe;
  calls(probe);
  for (const int streams : {8, 30, 64, 160}) probe.queues(streams);
  probe.sum();
  return 0;
}
