#pragma once

// A message of any length. MPI counts elements in an int, so more than INT_MAX bytes are sent as one element
// of a datatype made of blocks and a rest, which lie one behind the other as the bytes do.

#include <climits>
#include <mpi.h>

#include <cstddef>

namespace stagecraft::transport {

class MpiBytes {
 public:
  /// `most`: the largest count of single bytes; smaller in tests, so that small messages take the long way.
  explicit MpiBytes(std::size_t bytes, std::size_t most = INT_MAX);
  ~MpiBytes();
  MpiBytes(const MpiBytes&) = delete;
  MpiBytes& operator=(const MpiBytes&) = delete;

  /// For MPI_Isend and MPI_Irecv. Needed until these return, not until the transfer is over.
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

/// Bytes that came in, of a message received as one of the above.
[[nodiscard]] std::size_t received_bytes(const MPI_Status& status);

}  // namespace stagecraft::transport
