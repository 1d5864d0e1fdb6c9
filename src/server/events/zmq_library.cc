// Names and addresses.
#include "server/events/zmq_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "base/status.h"

namespace fovea::server {

Result<ZmqLibrary> ZmqLibrary::load() {
  void* const library = ::dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return Status(StatusCode::kUnavailable,
                  fmt::format("KV events need libzmq ({}); install the package libzmq5", why == nullptr ? "?" : why));
  }
  ZmqLibrary zmq;
  Status missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = unsupported("this libzmq.so.5 has no {}; expected version 4.1 or later", name);
  };
  find(zmq.ctx_new, "zmq_ctx_new");
  find(zmq.ctx_term, "zmq_ctx_term");
  find(zmq.socket, "zmq_socket");
  find(zmq.close, "zmq_close");
  find(zmq.bind, "zmq_bind");
  find(zmq.connect, "zmq_connect");
  find(zmq.setsockopt, "zmq_setsockopt");
  find(zmq.getsockopt, "zmq_getsockopt");
  find(zmq.send, "zmq_send");
  find(zmq.recv, "zmq_recv");
  find(zmq.poll, "zmq_poll");
  find(zmq.error, "zmq_errno");
  find(zmq.error_text, "zmq_strerror");
  if (!missing.ok()) return missing;
  return zmq;
}

}  // namespace fovea::server
