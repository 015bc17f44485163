/*
 * A plugin that writes every page walk to a file: one line of hexadecimal fields each.
 *
 *   vCPU CR3 CR4 address r|w|x u|s single|guest|nested (page PADDR SIZE | fault CODE | abandoned) {ENTRY_PADDR VALUE}
 *
 * With nested paging a guest's walk comes after the nested ones that it needed. CR3 of those is nCR3, and the
 * addresses that they translate are the guest-physical ones that the guest's walk has as PADDR and ENTRY_PADDR.
 *
 * Argument: out=FILE. Built against QEMU's qemu-plugin.h with our series.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

static FILE *file;

static void on_walk(qemu_plugin_id_t id, unsigned int vcpu, const struct qemu_plugin_page_walk *walk)
{
    static const char *const stages[] = {
        [QEMU_PLUGIN_PAGE_WALK_SINGLE] = "single",
        [QEMU_PLUGIN_PAGE_WALK_GUEST] = "guest",
        [QEMU_PLUGIN_PAGE_WALK_NESTED] = "nested",
    };

    (void)id;
    flockfile(file); /* vCPUs have threads of their own */
    fprintf(file, "%x %" PRIx64 " %" PRIx64 " %" PRIx64 " %c %c %s", vcpu, walk->root, walk->control, walk->vaddr,
            walk->is_fetch ? 'x' : walk->is_store ? 'w' : 'r', walk->is_user ? 'u' : 's', stages[walk->stage]);
    if (walk->is_abandoned)
        fprintf(file, " abandoned");
    else if (walk->faulted)
        fprintf(file, " fault %" PRIx32, walk->fault_code);
    else
        fprintf(file, " page %" PRIx64 " %" PRIx64, walk->paddr, walk->page_size);
    for (uint32_t i = 0; i < walk->n_entries; i++)
        fprintf(file, " %" PRIx64 " %" PRIx64, walk->entries[i].paddr, walk->entries[i].value);
    fputc('\n', file);
    funlockfile(file);
}

static void on_exit(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    fclose(file);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !info->system_emulation) {
        fprintf(stderr, "page_walks: give out=FILE, in system emulation\n");
        return 1;
    }
    file = fopen(argv[0] + 4, "w");
    if (!file) {
        perror(argv[0] + 4);
        return 1;
    }
    qemu_plugin_register_vcpu_page_walk_cb(id, on_walk);
    qemu_plugin_register_atexit_cb(id, on_exit, NULL);
    return 0;
}
