#include "base/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace stagecraft {
namespace {

/// A name of ours, and what PyTorch, DeepSpeed, Megatron, Hugging Face and papers call it, as remembered().
struct OtherNames {
  std::string_view ours;
  std::string_view theirs;  ///< between blanks
};
constexpr std::array kOtherNames{
    OtherNames{"cuda", " gpu gpus nvidia cuda0 "},
    OtherNames{"cpu", " host "},
    OtherNames{"float32", " fp32 f32 single "},
    OtherNames{"float16", " fp16 f16 half "},
    OtherNames{"bfloat16", " bf16 "},
    OtherNames{"float64", " fp64 f64 double "},
    OtherNames{"fill_drain", " gpipe afab allforwardallbackward schedulegpipe "},
    OtherNames{"1f1b", " onefoneb pipedreamflush dapple schedule1f1b 1f1bnoninterleaved "},
    OtherNames{"interleaved_1f1b", " interleaved interleave virtualpipeline scheduleinterleaved1f1b "},
    OtherNames{"looped_bfs", " bfs breadthfirst scheduleloopedbfs "},
    OtherNames{"zb_h1", " zerobubble zb zb1p h1 "},
    OtherNames{"zb_h2", " zb2p h2 "},
    OtherNames{"interleaved_zb", " interleavedzerobubble scheduleinterleavedzerobubble zb1i "},
    OtherNames{"zb_v", " zbvzerobubble schedulezbvzerobubble dualpipev scheduledualpipev "},
    OtherNames{"2bw", " pipedream2bw twobw doublebuffered "},
    OtherNames{"pipedream", " weightstashing asynchronous async "},
    OtherNames{"SGD", " momentum nesterov "},
    OtherNames{"AdamW", " adamwtorch adamwtorchfused adamwhf fusedadam fusedadamw "},
    OtherNames{"WarmupDecayLR", " linear linearwarmup polynomial "},
    OtherNames{"WarmupCosineLR", " cosine coswithwarmup cosinewithwarmup cosineannealing cosineannealinglr "},
    OtherNames{"WarmupLR", " constantwithwarmup warmup "},
    OtherNames{"WarmupStableDecayLR", " wsd "},
    OtherNames{"InverseSqrtLR", " inversesqrt noam rsqrt "},
    OtherNames{"OneCycleLR", " onecycle "},
    OtherNames{"cross_entropy", " ce crossentropyloss nll nllloss softmax "},
    OtherNames{"token_cross_entropy", " causallm lm languagemodeling nexttoken "},
    OtherNames{"mse", " l2 mseloss meansquarederror "},
    OtherNames{"idx", " mnist fashionmnist "},
    OtherNames{"arrays", " numpy npy npz array csv "},
    OtherNames{"tokens", " megatron bin mmap indexed tokenized "},
    OtherNames{"text", " txt corpus "},
    OtherNames{"synthetic", " random dummy fake "},
    OtherNames{"captured",
               " huggingface hf transformers torch pytorch llama gpt2 bert resnet vit qwen mistral "},
    OtherNames{"onednn", " mkldnn "},
    OtherNames{"blas", " mkl openblas "},
    OtherNames{"mpi", " openmpi ompi "},
    OtherNames{"local", " threads "},
    OtherNames{"c10d", " gloo torchrun "},
    OtherNames{"train_batch_size", " globalbatchsize batch gbs "},
    OtherNames{"train_micro_batch_size_per_gpu", " perdevicetrainbatchsize microbatch mbs "},
    OtherNames{"train_steps", " maxsteps numsteps numtrainsteps trainiters maxiters iterations steps "},
    OtherNames{"epochs", " numtrainepochs maxepochs nepochs numepochs "},
    OtherNames{"gradient_accumulation_steps", " microbatches nummicrobatches nmicrobatches "},
};

std::string_view other_names(std::string_view ours) {
  const auto* const found =
      std::ranges::find_if(kOtherNames, [&](const OtherNames& entry) { return entry.ours == ours; });
  return found == kOtherNames.end() ? "" : found->theirs;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_other_name(const std::string& remembered_word, std::string_view ours) {
  return !remembered_word.empty() && contains(other_names(ours), fmt::format(" {} ", remembered_word));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

/// How far `word` is from a candidate; less is nearer. The classes of the header's order lie far apart.
std::size_t distance_to(std::string_view word, const std::string& remembered_word,
                        const std::string& candidate) {
  constexpr std::size_t kClass = 1'000;
  constexpr std::size_t kShortestPart = 4;  // of fewer letters many names have some
  const std::string name = remembered(candidate);
  if (!name.empty() && name == remembered_word) return 0;
  if (is_other_name(remembered_word, candidate) || is_other_name(name, word)) return 1;
  const std::size_t edits = edit_distance(remembered_word, name);
  if (edits == 1 && name.size() > 2) return 2;
  // An abbreviation, or a part of a longer name: of several the shortest.
  const bool part =
      contains(name, remembered_word) || (name.size() < word.size() && contains(remembered_word, name));
  if ((remembered_word.size() >= 3 && name.starts_with(remembered_word)) ||
      (std::min(name.size(), remembered_word.size()) >= kShortestPart && part)) {
    return kClass + edits;
  }
  // Beyond a third of the word it is no longer a slip of the finger, but for two letters that changed places.
  constexpr std::size_t kShort = 5;
  const bool slip = edits <= (word.size() < kShort ? 1 : std::max<std::size_t>(2, word.size() / 3)) ||
                    (edits == 2 && std::ranges::is_permutation(remembered_word, name));
  return slip ? 2 * kClass + edits : std::string::npos;
}

}  // namespace

std::string remembered(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (contains("-_.: ", {&c, 1})) continue;
    letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return letters;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Whose typing can slip; the distance takes the product of two lengths.
  constexpr std::size_t kLongest = 200;
  std::string best;
  if (word.size() > kLongest) return best;
  const std::string letters = remembered(word);
  std::size_t least = std::string::npos;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 2 * kLongest) continue;
    if (const std::size_t distance = distance_to(word, letters, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string found = nearest(word, candidates);
  return found.empty() ? "" : fmt::format("; did you mean \"{}\"?", found);
}

}  // namespace stagecraft
