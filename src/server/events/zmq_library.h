// libzmq, loaded at run time where somebody asks for KV events: a server without them needs no such package. Its C API
// has been stable since 2013. Used by EventPublisher.
#pragma once

#include <cstddef>
#include <memory>

#include "fovea/status.h"

namespace fovea::server {

// As zmq.h of libzmq 4 declares them.
struct ZmqPollItem {
  void* socket = nullptr;
  int fd = -1;
  short events = 0;
  short revents = 0;
};
inline constexpr int kZmqPub = 1, kZmqRouter = 6;
inline constexpr int kZmqLinger = 17, kZmqSndHwm = 23, kZmqRcvMore = 13;
inline constexpr int kZmqDontWait = 1, kZmqSndMore = 2;
inline constexpr short kZmqPollIn = 1;

struct ZmqLibrary {
  void* (*ctx_new)() = nullptr;
  int (*ctx_term)(void*) = nullptr;
  void* (*socket)(void*, int) = nullptr;
  int (*close)(void*) = nullptr;
  int (*bind)(void*, const char*) = nullptr;
  int (*connect)(void*, const char*) = nullptr;
  int (*setsockopt)(void*, int, const void*, std::size_t) = nullptr;
  int (*getsockopt)(void*, int, void*, std::size_t*) = nullptr;
  int (*send)(void*, const void*, std::size_t, int) = nullptr;
  int (*recv)(void*, void*, std::size_t, int) = nullptr;
  int (*poll)(ZmqPollItem*, int, long) = nullptr;
  int (*error)() = nullptr;
  const char* (*error_text)(int) = nullptr;

  // kUnavailable where there is none, and which package has it. Stays loaded.
  static Result<ZmqLibrary> load();
};

}  // namespace fovea::server
