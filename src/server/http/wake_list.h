// WakeList: connections whose exchanges have something to send, woken together. A step of the engine writes to many
// streams; the first of them posts one message to the I/O thread, the others wait in the list for it. Filled by the
// wake function that a Connection gives to its Exchange, owned by HttpServer. Included with connection.h only.
#pragma once

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/http/exchange.h"

namespace fovea::server {

class WakeList {
 public:
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    // On the sleeper's executor. exchange: the one that called, which may be gone since.
    virtual void wake(const Exchange* exchange) = 0;
    virtual boost::asio::any_io_executor executor() = 0;
  };

  // one_thread: of the context, so that a sleeper's executor needs no strand.
  WakeList(boost::asio::io_context& io, bool one_thread) : io_(io), one_thread_(one_thread) {}

  void add(std::weak_ptr<Sleeper> sleeper, const Exchange* exchange) {
    bool first = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      first = waiting_.empty();
      waiting_.push_back({std::move(sleeper), exchange});
    }
    if (first) boost::asio::post(io_, [this] { wake_all(); });
  }

 private:
  struct Entry {
    std::weak_ptr<Sleeper> sleeper;
    const Exchange* exchange = nullptr;
  };

  void wake_all() {
    std::vector<Entry> entries;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      entries.swap(waiting_);
      waiting_.reserve(entries.size());
    }
    for (Entry& entry : entries) {
      const std::shared_ptr<Sleeper> sleeper = entry.sleeper.lock();
      if (!sleeper) continue;
      if (one_thread_) {
        sleeper->wake(entry.exchange);
      } else {
        boost::asio::dispatch(sleeper->executor(), [sleeper, exchange = entry.exchange] { sleeper->wake(exchange); });
      }
    }
  }

  boost::asio::io_context& io_;
  const bool one_thread_;
  std::mutex mutex_;
  std::vector<Entry> waiting_;
};

}  // namespace fovea::server
