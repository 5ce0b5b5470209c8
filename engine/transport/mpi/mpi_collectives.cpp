// What all ranks of an MpiTransport do together, and texts of any length.

#include "base/error.h"
#include "engine/transport/mpi/mpi_check.h"
#include "engine/transport/mpi/mpi_transport.h"
#include "engine/transport/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace stagecraft::transport {

void MpiTransport::finish(MPI_Request request, const std::shared_ptr<void>& memory, const std::string& what) {
  try {
    poll(
        [&] {
          int flag = 0;
          mpi_check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), what.c_str());
          return flag != 0;
        },
        [&] { return what; }, Clock::now());
  } catch (...) {
    session_.mark_failed();
    session_.keep(memory);
    throw;
  }
}

void MpiTransport::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Ibarrier(data_, &request), "MPI_Ibarrier");
  finish(request, nullptr, "barrier");
}

std::vector<std::string> MpiTransport::gather(const std::string& mine) {
  // Sizes come first, and with them what is short: a step's norms are there after one exchange.
  constexpr std::size_t kShort = 504;
  struct Packet {
    std::int64_t size = 0;
    std::array<char, kShort> text{};
  };
  struct Memory {
    std::string mine, all;
    Packet packet;
    std::vector<Packet> packets;
    std::vector<std::int64_t> sizes;
    std::vector<int> counts, offsets;
  };
  const auto memory = std::make_shared<Memory>();
  const auto ranks = static_cast<std::size_t>(world());
  memory->packet.size = static_cast<std::int64_t>(mine.size());
  std::memcpy(memory->packet.text.data(), mine.data(), std::min(mine.size(), kShort));
  memory->packets.resize(ranks);
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Iallgather(&memory->packet, sizeof(Packet), MPI_BYTE, memory->packets.data(), sizeof(Packet),
                           MPI_BYTE, data_, &request),
            "MPI_Iallgather");
  finish(request, memory, "all_gather of sizes");

  std::vector<std::string> parts;
  for (const Packet& packet : memory->packets) {
    memory->sizes.push_back(packet.size);
    if (packet.size > static_cast<std::int64_t>(kShort)) continue;
    parts.emplace_back(packet.text.data(), static_cast<std::size_t>(packet.size));
  }
  if (parts.size() == ranks) return parts;  // all ranks see the same sizes

  memory->mine = mine;
  memory->offsets = gather_offsets(memory->sizes);
  memory->counts.assign(memory->sizes.begin(), memory->sizes.end());
  memory->all.resize(static_cast<std::size_t>(memory->offsets.back()) +
                     static_cast<std::size_t>(memory->counts.back()));
  mpi_check(MPI_Iallgatherv(memory->mine.data(), static_cast<int>(mine.size()), MPI_BYTE, memory->all.data(),
                            memory->counts.data(), memory->offsets.data(), MPI_BYTE, data_, &request),
            "MPI_Iallgatherv");
  finish(request, memory, "all_gather");

  parts.clear();
  for (std::size_t r = 0; r < ranks; ++r) {
    parts.push_back(memory->all.substr(static_cast<std::size_t>(memory->offsets[r]),
                                       static_cast<std::size_t>(memory->counts[r])));
  }
  return parts;
}

std::vector<std::vector<double>> MpiTransport::all_gather(const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  for (const std::string& part : gather(bytes_of(mine))) all.push_back(numbers_in(part));
  return all;
}

std::vector<std::string> MpiTransport::all_gather_text(const std::string& mine) { return gather(mine); }

void MpiTransport::gather_text(Rank to, const std::string& mine,
                               const std::function<void(Rank from, const std::string& text)>& take) {
  if (rank() != to) return send_text(to, mine);
  std::string text;
  for (int r = 0; r < world(); ++r) {
    if (Rank{r} == to) {
      take(to, mine);
      continue;
    }
    text = receive_text(Rank{r});
    take(Rank{r}, text);
  }
}

std::string MpiTransport::receive_text(Rank from) {
  struct Memory {
    std::int64_t size = 0;
    std::string text;
  };
  const auto memory = std::make_shared<Memory>();
  const auto receive = [&](void* into, std::size_t bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_check(MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, from.value, 0, texts_, &request),
              "MPI_Irecv");
    finish(request, memory, fmt::format("receive of a text from rank {}", from.value));
  };
  receive(&memory->size, sizeof memory->size);
  memory->text.resize(static_cast<std::size_t>(memory->size));
  each_piece(memory->text, options_.text_piece, receive);
  return std::move(memory->text);
}

void MpiTransport::send_text(Rank to, const std::string& text) {
  struct Memory {
    std::int64_t size;
    std::string text;
  };
  const auto memory = std::make_shared<Memory>(Memory{static_cast<std::int64_t>(text.size()), text});
  const auto send = [&](const void* from, std::size_t bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to.value, 0, texts_, &request), "MPI_Isend");
    session_.ring(to);
    finish(request, memory, fmt::format("send of a text to rank {}", to.value));
  };
  send(&memory->size, sizeof memory->size);
  each_piece(memory->text, options_.text_piece, send);
}

std::string MpiTransport::broadcast(const std::string& text) {
  struct Memory {
    std::string text;
    std::int64_t size = 0;
  };
  const auto memory = std::make_shared<Memory>();
  if (rank().value == 0) memory->text = text;
  memory->size = static_cast<std::int64_t>(memory->text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Ibcast(&memory->size, 1, MPI_INT64_T, 0, data_, &request), "MPI_Ibcast");
  finish(request, memory, "broadcast of a size");
  memory->text.resize(static_cast<std::size_t>(memory->size));
  each_piece(memory->text, options_.text_piece, [&](void* piece, std::size_t bytes) {
    mpi_check(MPI_Ibcast(piece, static_cast<int>(bytes), MPI_BYTE, 0, data_, &request), "MPI_Ibcast");
    finish(request, memory, "broadcast");
  });
  return std::move(memory->text);
}

void MpiTransport::begin_agreement(int mine) {
  const auto agreement = std::make_shared<Agreement>();
  agreement->mine = mine;
  begun_.push_back(agreement);
  mpi_check(MPI_Iallreduce(&agreement->mine, &agreement->most, 1, MPI_INT, MPI_MAX, agreements_,
                           &agreement->request),
            "MPI_Iallreduce");
}

int MpiTransport::finish_agreement() {
  STAGECRAFT_CHECK(!begun_.empty(), "an agreement is begun before it is finished");
  const std::shared_ptr<Agreement> agreement = begun_.front();
  finish(agreement->request, agreement, "agreement of all ranks");
  begun_.pop_front();
  return agreement->most;
}

}  // namespace stagecraft::transport
