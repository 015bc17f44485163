// Programs with GraphBIG's data structures, to be recorded and compared with the built-in workloads.
//
// openG as it is built by default (Nai et al., SC 2015): vertices are a std::list with a hash index by identifier; each
// vertex has such lists of its edges out and in; an edge names its target by identifier and shares its property with its
// other end. Written anew from that description, with the containers that openG uses (TR1). The graph is drawn as the
// built-in workloads draw theirs.
//
// usage: kernels bfs|cc|dc|pr VERTICES SEED
//
// Prints what the kernel found, and how often it followed an edge. Recording begins with the kernel.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <list>
#include <queue>
#include <random>
#include <string>
#include <tr1/memory>
#include <tr1/unordered_map>
#include <vector>

#include "flatwalk.h"

/// A list with an index by identifier.
template <class T> struct IndexedList {
    typedef typename std::list<T>::iterator iterator;
    std::list<T> items;
    std::tr1::unordered_map<size_t, iterator> index;

    iterator add(const T &item) {
        items.push_back(item);
        iterator last = --items.end();
        index[last->id] = last;
        return last;
    }

    iterator find(size_t id) {
        typename std::tr1::unordered_map<size_t, iterator>::iterator found = index.find(id);
        return found == index.end() ? items.end() : found->second;
    }
};

struct EdgeProperty {
    uint8_t value;
    EdgeProperty() : value(0) {}
};

struct Edge {
    uint64_t id, target;
    std::tr1::shared_ptr<EdgeProperty> property;
};

template <class Property> struct Vertex {
    uint64_t id;
    Property property;
    IndexedList<Edge> in, out;
};

template <class Property> struct Graph {
    typedef typename IndexedList<Vertex<Property> >::iterator vertex_iterator;
    typedef IndexedList<Edge>::iterator edge_iterator;
    IndexedList<Vertex<Property> > vertices;
    // The names that the files give the vertices.
    std::tr1::unordered_map<std::string, uint64_t> by_name;
    std::tr1::unordered_map<uint64_t, std::string> names;
    uint64_t edges;

    Graph() : edges(0) {}

    void add_vertex(uint64_t id) {
        Vertex<Property> vertex;
        vertex.id = id;
        vertices.add(vertex);
        std::string name = std::to_string(id);
        by_name[name] = id;
        names[id] = name;
    }

    void add_edge(uint64_t from, uint64_t to) {
        Edge edge;
        edge.id = edges++;
        edge.target = to;
        edge_iterator out = vertices.find(from)->out.add(edge);
        out->property.reset(new EdgeProperty);
        edge.target = from;
        edge.property = out->property;
        vertices.find(to)->in.add(edge);
    }
};

/// Followed edges.
static uint64_t followed;

struct Degrees {
    int16_t in, out;
    Degrees() : in(0), out(0) {}
};

static uint64_t dc(Graph<Degrees> &graph) {
    typedef Graph<Degrees> G;
    for (G::vertex_iterator vertex = graph.vertices.items.begin(); vertex != graph.vertices.items.end(); vertex++) {
        vertex->property.out = vertex->out.items.size();
        for (G::edge_iterator edge = vertex->out.items.begin(); edge != vertex->out.items.end(); edge++)
            graph.vertices.find(edge->target)->property.in++;
    }
    followed += graph.edges;
    return graph.vertices.items.front().property.in;
}

enum { WHITE, GREY, BLACK };

struct Search {
    uint8_t colour;
    uint64_t order;
    uint16_t level;
    Search() : colour(WHITE), order(0), level(0xfff0) {}
};

static uint64_t bfs(Graph<Search> &graph) {
    typedef Graph<Search> G;
    std::queue<G::vertex_iterator> found;
    G::vertex_iterator root = graph.vertices.find(0);
    root->property.colour = GREY;
    root->property.level = 0;
    uint64_t count = 1;
    found.push(root);
    while (!found.empty()) {
        G::vertex_iterator vertex = found.front();
        found.pop();
        uint16_t level = vertex->property.level + 1;
        followed += vertex->out.items.size();
        for (G::edge_iterator edge = vertex->out.items.begin(); edge != vertex->out.items.end(); edge++) {
            G::vertex_iterator target = graph.vertices.find(edge->target);
            if (target->property.colour == WHITE) {
                target->property.colour = GREY;
                target->property.order = count++;
                target->property.level = level;
                found.push(target);
            }
        }
        vertex->property.colour = BLACK;
    }
    return count;
}

struct Component {
    uint16_t level, label;
    Component() : level(0xfff0), label(0) {}
};

static uint64_t cc(Graph<Component> &graph) {
    typedef Graph<Component> G;
    uint16_t label = 0;
    for (G::vertex_iterator root = graph.vertices.items.begin(); root != graph.vertices.items.end(); root++) {
        if (root->property.level != 0xfff0)
            continue;
        std::queue<G::vertex_iterator> found;
        root->property.level = 0;
        root->property.label = label;
        found.push(root);
        while (!found.empty()) {
            G::vertex_iterator vertex = found.front();
            found.pop();
            uint16_t level = vertex->property.level + 1;
            followed += vertex->out.items.size();
            for (G::edge_iterator edge = vertex->out.items.begin(); edge != vertex->out.items.end(); edge++) {
                G::vertex_iterator target = graph.vertices.find(edge->target);
                if (target->property.level == 0xfff0) {
                    target->property.level = level;
                    target->property.label = label;
                    found.push(target);
                }
            }
        }
        label++;
    }
    return label;
}

struct Rank {
    float rank, old;
    Rank() : rank(0.1f), old(0.1f) {}
};

static uint64_t pr(Graph<Rank> &graph) {
    typedef Graph<Rank> G;
    const double damping = 0.85;
    uint64_t count = graph.vertices.items.size();
    for (uint64_t id = 0; id < count; id++)
        graph.vertices.find(id)->property.rank = 1.0 / (double)count;
    float base = (1.0 - damping) / (double)count, change;
    uint64_t rounds = 0;
    do {
        for (uint64_t id = 0; id < count; id++) {
            G::vertex_iterator vertex = graph.vertices.find(id);
            vertex->property.old = vertex->property.rank;
            vertex->property.rank = base;
        }
        for (uint64_t id = 0; id < count; id++) {
            G::vertex_iterator vertex = graph.vertices.find(id);
            float pushed = damping * vertex->property.old / (double)vertex->out.items.size();
            for (G::edge_iterator edge = vertex->out.items.begin(); edge != vertex->out.items.end(); edge++)
                graph.vertices.find(edge->target)->property.rank += pushed;
        }
        change = 0;
        for (uint64_t id = 0; id < count; id++) {
            G::vertex_iterator vertex = graph.vertices.find(id);
            change += std::fabs(vertex->property.rank - vertex->property.old);
        }
        followed += graph.edges;
        rounds++;
    } while (change >= 0.001f && rounds < 100);
    return rounds;
}

/// Friendships of a social network in both directions, sorted: log-normal degrees cut at 50 times the median, friends alike
/// in one of two respects (45 % each) or in none.
static std::vector<std::pair<uint32_t, uint32_t> > social(size_t vertices, uint64_t seed) {
    const double mean_degree = 28.82, sigma = 1.142, largest = 50.0;
    const double shares[] = {0.45, 0.45, 0.1};
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> unit;
    std::vector<double> degrees(vertices);
    double sum = 0;
    for (size_t i = 0; i < vertices; i++)
        sum += degrees[i] = std::min(std::exp(sigma * normal(random)), largest);
    std::vector<std::pair<uint32_t, uint32_t> > pairs;
    for (int respect = 0; respect < 3; respect++) {
        std::vector<uint32_t> order(vertices), ends;
        for (size_t i = 0; i < vertices; i++)
            order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        for (size_t i = 0; i < vertices; i++) {
            double number = degrees[order[i]] * mean_degree * vertices / sum * shares[respect] + unit(random);
            ends.insert(ends.end(), (size_t)number, order[i]);
        }
        size_t near = respect < 2 ? 1 << 14 : ends.size();
        for (size_t at = 0; at < ends.size(); at += near) {
            std::vector<uint32_t>::iterator from = ends.begin() + at, to = ends.begin() + std::min(at + near, ends.size());
            std::shuffle(from, to, random);
            for (; to - from >= 2; from += 2)
                if (from[0] != from[1]) {
                    pairs.push_back(std::make_pair(from[0], from[1]));
                    pairs.push_back(std::make_pair(from[1], from[0]));
                }
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    return pairs;
}

template <class Property> static int run(uint64_t (*kernel)(Graph<Property> &), size_t vertices, uint64_t seed) {
    static Graph<Property> graph;
    {
        std::vector<std::pair<uint32_t, uint32_t> > pairs = social(vertices, seed);
        for (size_t id = 0; id < vertices; id++)
            graph.add_vertex(id);
        for (size_t i = 0; i < pairs.size(); i++)
            graph.add_edge(pairs[i].first, pairs[i].second);
    }
    flatwalk_start();
    uint64_t result = kernel(graph);
    flatwalk_stop();
    printf("vertices=%zu edges=%llu followed=%llu result=%llu\n", vertices, (unsigned long long)graph.edges,
           (unsigned long long)followed, (unsigned long long)result);
    fflush(stdout);
    // Freeing all of it one by one shows nothing.
    _Exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: kernels bfs|cc|dc|pr VERTICES SEED\n");
        return 2;
    }
    size_t vertices = strtoull(argv[2], 0, 10);
    uint64_t seed = strtoull(argv[3], 0, 10);
    if (!strcmp(argv[1], "bfs"))
        return run(bfs, vertices, seed);
    if (!strcmp(argv[1], "cc"))
        return run(cc, vertices, seed);
    if (!strcmp(argv[1], "dc"))
        return run(dc, vertices, seed);
    if (!strcmp(argv[1], "pr"))
        return run(pr, vertices, seed);
    fprintf(stderr, "%s is none of bfs, cc, dc, pr\n", argv[1]);
    return 2;
}
