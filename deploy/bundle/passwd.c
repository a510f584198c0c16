/* Users and groups for the bundle's programs, preloaded into them: an image need not have an /etc/passwd.
 *
 * sftp-server refuses to run for a user id without an entry, and the C library would look entries up through the
 * modules that the image's nsswitch.conf names, built for another C library. Here the two files are read directly, and
 * a user or group that is not in them gets a plain entry. Only what sftp-server and rsync call is replaced.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct passwd *look_up_user(const char *name, uid_t uid)
{
    static struct passwd *entry; /* fgetpwent's own static storage, as getpwuid's is */
    FILE *file = fopen("/etc/passwd", "re");
    if (!file)
        return NULL;
    while ((entry = fgetpwent(file)))
        if (name ? !strcmp(entry->pw_name, name) : entry->pw_uid == uid)
            break;
    fclose(file);
    return entry;
}

static struct group *look_up_group(const char *name, gid_t gid)
{
    static struct group *entry;
    FILE *file = fopen("/etc/group", "re");
    if (!file)
        return NULL;
    while ((entry = fgetgrent(file)))
        if (name ? !strcmp(entry->gr_name, name) : entry->gr_gid == gid)
            break;
    fclose(file);
    return entry;
}

static struct passwd *made_up_user(uid_t uid)
{
    static char name[16];
    static struct passwd entry;
    snprintf(name, sizeof name, uid ? "%u" : "root", (unsigned)uid);
    entry = (struct passwd){ .pw_name = name, .pw_passwd = "*", .pw_uid = uid, .pw_gid = getgid(), .pw_gecos = "",
                             .pw_dir = access("/root", X_OK) ? "/" : "/root", .pw_shell = "/bin/sh" };
    return &entry;
}

struct passwd *getpwuid(uid_t uid)
{
    struct passwd *entry = look_up_user(NULL, uid);
    if (entry)
        return entry;
    /* only for whom the program runs as; files of other ids are shown by their number */
    return uid == getuid() ? made_up_user(uid) : NULL;
}

struct passwd *getpwnam(const char *name)
{
    struct passwd *entry = look_up_user(name, 0);
    if (entry)
        return entry;
    return strcmp(name, "root") ? NULL : made_up_user(0);
}

struct group *getgrgid(gid_t gid)
{
    return look_up_group(NULL, gid);
}

struct group *getgrnam(const char *name)
{
    return look_up_group(name, 0);
}
